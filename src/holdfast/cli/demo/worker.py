"""One attempt of the demo: a process that claims the run and executes it."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.demo.agent import RUN_ID, Ledger, build_agent
from holdfast.cli.stores import get_record
from holdfast.core.events import Event
from holdfast.core.info import RunInfo
from holdfast.stores.url import store_from_url


class EventForwarder:
    """A listener that writes each event to stdout as a line of JSON, for the parent process."""

    async def on_event(self, info: RunInfo, event: Event) -> None:
        # Unbuffered: an event from before the kill has to arrive.
        os.write(1, msgspec.json.encode(event) + b"\n")

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


async def run_worker(store: CheckpointStore, ledger: Ledger, pace: float) -> None:
    """Recover until the run is terminal."""
    async with App([build_agent(ledger, pace)], store, worker=False, listener=EventForwarder()) as app:
        while not (await get_record(store, RUN_ID)).is_terminal:
            await app.recover()
            await store.wait_for_change(timedelta(milliseconds=50))


if __name__ == "__main__":
    _, url, ledger, attempt, pace = sys.argv
    asyncio.run(run_worker(store_from_url(url), Ledger(Path(ledger), int(attempt)), float(pace)))
