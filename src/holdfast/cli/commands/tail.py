"""holdfast tail"""

import asyncio
import hashlib
from typing import Annotated

import typer

from holdfast.checkpoint.codec import RecordedResult, decode
from holdfast.checkpoint.errors import RunNotFound, StoreUnavailable
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.listing import shown_state
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import Paper, print_json_line, talk
from holdfast.cli.stores import opened
from holdfast.cli.telling import Teller
from holdfast.cli.transcript import Item, Transcript

#: A store gives no sign when a run is written to, so it is asked.
_LOOK = 0.2


def tail(
    run: RunArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Begin with the last N entries; 0 for all.")
    ] = 20,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts short.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Follow a run until it is over, whoever drives it.

    Crashes, resumes and compactions do not end the following. Ctrl-C ends it, and not the run. --json prints each item
    as a line of JSON.
    """
    try:
        asyncio.run(_follow(store, run, _Printed(lines, full=full, as_json=as_json)))
    except KeyboardInterrupt:
        talk(f"run {run} goes on without being followed")


class _Printed:
    """What was printed so far, so that nothing is printed twice, not even after a journal was written anew."""

    def __init__(self, lines: int, *, full: bool, as_json: bool) -> None:
        self._lines, self._as_json = lines, as_json
        self._transcript, self._teller = Transcript(), Teller(Paper(), full=full)
        self._seen: set[bytes] = set()
        self.seq = -1
        self._state = ""

    def take(self, stored: StoredRun) -> None:
        """Print what the store has beyond what was printed."""
        if stored.record.next_seq <= self.seq:
            self.seq = -1  # it was removed, and another run has its id: the next look shows it
            return
        rewritten = self.seq >= 0 and any(entry.kind is EntryKind.BEGIN for entry in stored.entries)
        if rewritten:
            talk("the conversation was rewritten: only what is new in it is shown")
        new = [entry for entry in stored.entries if self._unseen(entry) or not rewritten]
        items = self._transcript.read(new)
        for item in items[-self._lines :] if self.seq < 0 else items:
            self._print(item)
        if stored.entries:
            self.seq = stored.entries[-1].seq

    def _unseen(self, entry: Entry) -> bool:
        """Whether this was not told before. A result that was recorded is the same when it comes as a message."""
        result = entry.kind is EntryKind.RESULT
        body = bytes(decode(entry.body, RecordedResult).message) if result else entry.body
        digest = hashlib.blake2b(body, digest_size=16).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > before

    def _print(self, item: Item) -> None:
        if self._as_json:
            print_json_line(item)
        else:
            self._teller.tell(item)

    def state(self, record: RunRecord) -> None:
        """Tell how the run stands whenever that changes."""
        state = shown_state(record)
        if state != self._state:
            self._state = state
            talk(f"run {record.run_id} is {state}" + (f": {record.reason}" if record.reason else ""))


async def _follow(store_url: str, run_id: str, printed: _Printed) -> None:
    async with opened(store_url) as store:
        while True:
            if await _over(store, run_id, printed):
                return
            await asyncio.sleep(_LOOK)


async def _over(store: CheckpointStore, run_id: str, printed: _Printed) -> bool:
    """Print what is new; whether the run is over. A store that does not answer for a while is asked again."""
    known = printed.seq >= 0
    try:
        stored = await store.load(run_id, after=printed.seq)
    except RunNotFound:
        if not known:
            raise
        talk(f"run {run_id} is over and was removed")
        return True
    except StoreUnavailable:
        if not known:
            raise
        return False
    printed.take(stored)
    printed.state(stored.record)
    return stored.record.over
