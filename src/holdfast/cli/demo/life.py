"""One life of the demo's agent, in a process of its own: takes the run from the store and goes on with it."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.cli.demo.clerk import RUN_ID, clerk
from holdfast.cli.demo.ledger import Ledger
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunEvent


class Told:
    """A delivery that tells the parent process of each event, in a line on stdout."""

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        # Not through a buffer: what is told before a kill has to arrive.
        os.write(1, msgspec.json.encode(event) + b"\n")

    async def output(self, info: RunInfo, output: Any) -> None: ...

    async def error(self, info: RunInfo, error: BaseException) -> None: ...


async def live(store: str, ledger: Ledger, pace: float) -> None:
    """Recover until the run is over."""
    async with App([clerk(ledger, pace)], store, recover=False, delivery=Told()) as app:
        assert app.store is not None
        while not (await app.store.load(RUN_ID)).record.over:
            await app.recover()
            await app.store.changed(timedelta(milliseconds=50))


if __name__ == "__main__":
    _, store, ledger, life, pace = sys.argv
    asyncio.run(live(store, Ledger(Path(ledger), int(life)), float(pace)))
