"""Processes that answer calls, or that die when mail was consumed.

`python -m tests.core.execution.mail_process COMMAND URL LEDGER ...`, with the command `answer` or `consume`.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.core.execution.mail_worker import make_agent

from holdfast import App, Approve
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.stores.from_url import store_from_url
from holdfast.stores.wrapper import StoreWrapper


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingStore(StoreWrapper):
    """Kills its process when a write that consumed mail with this prefix has returned."""

    def __init__(self, store: RunStore, prefix: str) -> None:
        super().__init__(store)
        self._prefix = prefix

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, write)
        if any(mail_id.startswith(self._prefix) for mail_id in write.consumed):
            die()


async def answer(url: str, ledger: str, by: str, *run_ids: str) -> None:
    """Approve the payments of the runs when a line comes in, and print the errors by run. Die if the line says so."""
    async with App([make_agent(Path(ledger))], url, worker=False) as app:
        print("ready", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)

        async def approve(run_id: str) -> str:
            try:
                await app.answer(run_id, "0", Approve(), by=by)
            except CheckpointError as exc:
                return str(exc)
            if line == "answer and die\n":
                die()
            return ""

        print(json.dumps(await asyncio.gather(*(approve(run_id) for run_id in run_ids))), flush=True)


async def consume(url: str, ledger: str, prefix: str) -> None:
    """Execute runs until one has consumed mail whose id has this prefix."""
    async with App([make_agent(Path(ledger))], DyingStore(store_from_url(url), prefix)) as app:
        print("ready", flush=True)
        await app.serve()


if __name__ == "__main__":
    asyncio.run((answer if sys.argv[1] == "answer" else consume)(*sys.argv[2:]))
