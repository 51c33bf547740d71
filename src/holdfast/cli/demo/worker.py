"""One life of the demo's agent, in a process of its own: takes the run from the store and goes on with it."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.cli.demo.agent import RUN_ID, Ledger, build_agent
from holdfast.config import WorkerSettings
from holdfast.core.info import RunInfo
from holdfast.core.ports import RunEvent


class EventForwarder:
    """A delivery that tells the parent process of each event, in a line on stdout."""

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        # Not through a buffer: what is told before a kill has to arrive.
        os.write(1, msgspec.json.encode(event) + b"\n")

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


async def run_worker(store: str, ledger: Ledger, pace: float) -> None:
    """Recover until the run is over."""
    async with App(
        [build_agent(ledger, pace)], store, worker=WorkerSettings(recover_on_start=False), listener=EventForwarder()
    ) as app:
        assert app.store is not None
        while not (await app.store.load(RUN_ID)).record.is_terminal:
            await app.recover()
            await app.store.wait_for_change(timedelta(milliseconds=50))


if __name__ == "__main__":
    _, store, ledger, life, pace = sys.argv
    asyncio.run(run_worker(store, Ledger(Path(ledger), int(life)), float(pace)))
