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
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import Output, print_diagnostic, print_json_line
from holdfast.cli.stores import open_store
from holdfast.cli.transcript import TranscriptPrinter
from holdfast.runtime.reading import present_status
from holdfast.runtime.transcript import Transcript, TranscriptItem

#: Stores send no notification for an append.
_POLL_INTERVAL = 0.2


def tail(
    run: RunArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Start with the last N entries; 0 for all.")
    ] = 20,
    full: Annotated[bool, typer.Option("--full", help="Do not truncate long texts.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Follow a run until it is terminal, in whichever process it is executed.

    Crashes, resumes and compactions do not end it. Ctrl-C ends the command, not the run. --json prints each item as a
    line of JSON.
    """
    try:
        asyncio.run(_follow(store, run, _TailPrinter(lines, full=full, as_json=as_json)))
    except KeyboardInterrupt:
        print_diagnostic(f"stopped following; run {run} is not affected")


class _TailPrinter:
    """Prints each entry once, also after the journal was rewritten."""

    def __init__(self, lines: int, *, full: bool, as_json: bool) -> None:
        self._lines, self._as_json = lines, as_json
        self._transcript, self._printer = Transcript(), TranscriptPrinter(Output(), full=full)
        self._seen: set[bytes] = set()
        self.seq = -1
        self._status = ""

    def print_new(self, stored: StoredRun) -> None:
        """Print the new entries of the run."""
        if stored.record.next_seq <= self.seq:
            self.seq = -1  # the run was removed and another one has its id: the next poll shows it
            return
        rewritten = self.seq >= 0 and any(entry.kind is EntryKind.BEGIN for entry in stored.entries)
        if rewritten:
            print_diagnostic("the conversation was rewritten: only its new messages are shown")
        new = [entry for entry in stored.entries if self._is_new(entry) or not rewritten]
        items = self._transcript.read(new)
        for item in items[-self._lines :] if self.seq < 0 else items:
            self._print_item(item)
        if stored.entries:
            self.seq = stored.entries[-1].seq

    def _is_new(self, entry: Entry) -> bool:
        """Return whether the entry was not printed yet. A recorded result equals the later message with it."""
        result = entry.kind is EntryKind.RESULT
        body = bytes(decode(entry.body, RecordedResult).message) if result else entry.body
        digest = hashlib.blake2b(body, digest_size=16).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) > before

    def _print_item(self, item: TranscriptItem) -> None:
        if self._as_json:
            print_json_line(item)
        else:
            self._printer.print_item(item)

    def print_status_change(self, record: RunRecord) -> None:
        """Print the run's status if it changed."""
        status = present_status(record)
        if status != self._status:
            self._status = status
            print_diagnostic(f"run {record.run_id} is {status}" + (f": {record.reason}" if record.reason else ""))


async def _follow(store_url: str, run_id: str, printer: _TailPrinter) -> None:
    async with open_store(store_url) as store:
        while True:
            if await _poll(store, run_id, printer):
                return
            await asyncio.sleep(_POLL_INTERVAL)


async def _poll(store: CheckpointStore, run_id: str, printer: _TailPrinter) -> bool:
    """Print the new entries. Return whether the run is terminal. An unavailable store is polled again."""
    known = printer.seq >= 0
    try:
        stored = await store.load(run_id, after=printer.seq)
    except RunNotFound:
        if not known:
            raise
        print_diagnostic(f"run {run_id} has finished and was removed")
        return True
    except StoreUnavailable:
        if not known:
            raise
        return False
    printer.print_new(stored)
    printer.print_status_change(stored.record)
    return stored.record.is_terminal
