"""The memory store hands out nothing that a caller could change behind its back."""

from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, RunRecord, StoredRun
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.stores.memory import MemoryStore


def an_entry(seq: int) -> Entry:
    return Entry(seq=seq, kind=EntryKind.MESSAGE, body=b"%d" % seq)


async def a_store_with_a_run(entries: list[Entry]) -> tuple[MemoryStore, Any]:
    store = MemoryStore()
    await store.open()
    await store.register_worker(WorkerIdentity(worker_id="w", process=this_process()))
    run = NewRun(run_id="r", agent_name="a", info=b"info", progress=b"progress", entries=entries)
    return store, await store.create(run, worker_id="w")


async def test_the_lists_a_caller_gave_are_not_the_stores_own() -> None:
    given = [an_entry(0)]
    store, claim = await a_store_with_a_run(given)
    given.clear()
    more = [an_entry(1)]
    await store.append(claim, Append(entries=more, progress=b"2"))
    more.append(an_entry(2))
    assert [entry.seq for entry in (await store.load("r")).entries] == [0, 1]


async def test_what_was_loaded_does_not_change_when_the_run_continues() -> None:
    store, claim = await a_store_with_a_run([an_entry(0)])
    before = await store.load("r")
    seen = msgspec.structs.asdict(before.record), list(before.entries)
    await store.append(claim, Append(entries=[an_entry(1)], progress=b"later"))
    assert (msgspec.structs.asdict(before.record), list(before.entries)) == seen


async def test_nothing_that_is_handed_out_can_be_changed() -> None:
    store, _ = await a_store_with_a_run([an_entry(0)])
    loaded = await store.load("r")
    [record] = [record async for record in iter_runs(store)]

    def frozen(value: Any) -> None:
        assert isinstance(value, StoredRun | RunRecord | Entry | tuple | bytes | str | int | None) or value.tzinfo
        if isinstance(value, msgspec.Struct):
            for name in set(value.__struct_fields__) - {"labels"}:
                with pytest.raises(AttributeError):
                    setattr(value, name, None)
                frozen(getattr(value, name))
        elif isinstance(value, tuple):
            for each in value:
                frozen(each)

    frozen(loaded)
    frozen(record)


async def test_changing_the_labels_of_a_record_changes_no_other_record() -> None:
    store = MemoryStore()
    await store.open()
    given = {"team": "red"}
    await store.create(NewRun(run_id="r", agent_name="a", labels=given, info=b"", progress=b"", entries=()))
    given.clear()
    first = (await store.load("r")).record.labels
    assert isinstance(first, dict), "encoders know a dict"
    first.clear()
    assert (await get_record(store, "r")).labels == {"team": "red"}
