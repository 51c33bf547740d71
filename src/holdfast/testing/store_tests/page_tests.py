"""Tests of listings and pages."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    list_run_ids,
    load_contents,
    load_record,
    make_append,
    make_run,
)

WRONG_CURSORS = ["", " ", "nonsense", "-1", "1.5", "9" * 30, "9" * 5_000, "☂", "\0", "' or 1=1", "null", "{}"]


@pytest.mark.asyncio
class ListingTests(StoreUnderTest):
    async def test_an_empty_store_lists_nothing(self, store: RunStore) -> None:
        assert await list_run_ids(store) == []

    async def test_runs_are_listed_oldest_first(self, store: RunStore, worker: str) -> None:
        for run_id in ("zebra", "apple", "Mango", "10", "9"):
            claim = await create_claimed(store, worker, make_run(run_id))
            await store.append(claim, make_append(1, b"more"))
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        await store.claim("apple", worker)
        assert await list_run_ids(store) == ["zebra", "apple", "Mango", "10", "9"]

    async def test_a_listed_record_equals_the_loaded_one(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("queued", info=b"\0\xff", parent_run_id="deregistered"))
        await store.append(
            await create_claimed(store, worker, make_run("running")), make_append(1, b"more", progress=b"\0\xff")
        )
        for status in sorted(RELEASE_STATUSES):
            claim = await create_claimed(store, worker, make_run(status))
            await store.release(claim, Release(status=status, reason="because", retention=timedelta(hours=1)))
        records = [record async for record in iter_runs(store)]
        assert len(records) == 2 + len(RELEASE_STATUSES)
        for record in records:
            assert record == (await load_contents(store, record.run_id))[0]

    async def test_a_listed_run_matches_every_filter(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("one", agent_name="A", caller_id="x"))
        await store.create(make_run("two", agent_name="A", caller_id="y", parent_run_id="one"))
        await create_claimed(store, worker, make_run("three", agent_name="B", caller_id="x", parent_run_id="one"))
        parked = await create_claimed(store, worker, make_run("four", agent_name="B", caller_id="y"))
        await store.release(parked, Release(status=RunStatus.PARKED))
        for filter, expected in (
            (RunFilter(), ["one", "two", "three", "four"]),
            (RunFilter(agent_name="A"), ["one", "two"]),
            (RunFilter(caller_id="x"), ["one", "three"]),
            (RunFilter(parent_run_id="one"), ["two", "three"]),
            (RunFilter(statuses=frozenset({RunStatus.QUEUED, RunStatus.PARKED})), ["one", "two", "four"]),
            (RunFilter(statuses=frozenset()), []),
            (RunFilter(interrupted=True), ["one", "two"]),
            (RunFilter(agent_name="B", caller_id="x", parent_run_id="one"), ["three"]),
            (RunFilter(agent_name="B", interrupted=True), []),
            (RunFilter(statuses=frozenset({RunStatus.PARKED}), interrupted=True), []),
            (RunFilter(agent_name="C"), []),
        ):
            assert await list_run_ids(store, filter) == expected, filter

    async def test_runs_without_a_live_worker_are_listed_as_interrupted(self, store: RunStore, worker: str) -> None:
        deregistered = await add_worker(store)
        await store.create(make_run("queued"))
        await create_claimed(store, deregistered, make_run("abandoned"))
        await create_claimed(store, worker, make_run("executed"))
        for status in sorted(RELEASE_STATUSES):
            await store.release(await create_claimed(store, worker, make_run(status)), Release(status=status))
        await store.deregister_worker(deregistered)
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["queued", "abandoned", "interrupted"]

    async def test_a_listing_continues_while_its_runs_change(self, store: RunStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(120)]
        for name in names:
            await store.create(make_run(name))
        seen = []
        async for record in iter_runs(store, RunFilter(interrupted=True), page_size=7):
            seen.append(record.run_id)
            await store.remove(record.run_id, claim=await store.claim(record.run_id, worker))
            await store.create(make_run(f"new-{record.run_id}", agent_name="other"))
            if len(seen) > 2 * len(names):
                break
        assert [run_id for run_id in seen if run_id in names] == names

    async def test_concurrent_listings_are_complete(self, store: RunStore) -> None:
        names = [f"run-{n}" for n in range(50)]
        for name in names:
            await store.create(make_run(name))
        for listed in await asyncio.gather(*(list_run_ids(store) for _ in range(20))):
            assert listed == names

    async def test_a_run_that_replaces_another_at_once_is_listed(self, store: RunStore, worker: str) -> None:
        for _ in range(30):
            claim = await create_claimed(store, worker)
            assert [record.token async for record in iter_runs(store)] == [claim.token]
            await store.remove("run-1", claim=claim)

    async def test_a_listing_may_be_left_early(self, store: RunStore) -> None:
        for n in range(50):
            await store.create(make_run(f"run-{n}"))
        async for record in iter_runs(store, page_size=7):
            assert record.run_id == "run-0"
            break
        await store.remove("run-0")
        assert len(await list_run_ids(store)) == 49


async def read_pages(store: RunStore, filter: RunFilter | None = None, *, limit: int = 3) -> list[str]:
    """Return the ids of all pages, in order."""
    run_ids: list[str] = []
    cursor = None
    while True:
        page = await store.list_page(filter, limit=limit, cursor=cursor)
        assert len(page.records) == limit or page.cursor is None, "only the last page is short"
        run_ids += [record.run_id for record in page.records]
        if page.cursor is None:
            return run_ids
        cursor = page.cursor


@pytest.mark.asyncio
class PageTests(StoreUnderTest):
    async def test_an_empty_store_has_one_empty_page(self, store: RunStore) -> None:
        page = await store.list_page()
        assert (list(page.records), page.cursor) == ([], None)

    async def test_pages_are_newest_first_by_creation(self, store: RunStore, worker: str) -> None:
        names = ["zebra", "apple", "Mango", "10", "9"]
        for name in names:
            await store.create(make_run(name))
        await store.release(await store.claim("apple", worker), Release(status=RunStatus.INTERRUPTED))
        for limit in (1, 2, 4, 5, 50):
            assert await read_pages(store, limit=limit) == names[::-1]

    async def test_a_page_has_a_cursor_only_if_runs_are_left(self, store: RunStore) -> None:
        for n in range(4):
            await store.create(make_run(f"run-{n}", agent_name="AB"[n % 2]))
        for filter, limit, has_more in (
            (None, 3, True),
            (None, 4, False),
            (None, 5, False),
            (RunFilter(agent_name="A"), 1, True),
            (RunFilter(agent_name="A"), 2, False),
            (RunFilter(agent_name="C"), 1, False),
        ):
            page = await store.list_page(filter, limit=limit)
            assert (page.cursor is not None) == has_more, (filter, limit)

    async def test_a_page_has_fifty_runs_unless_told_otherwise(self, store: RunStore) -> None:
        for n in range(51):
            await store.create(make_run(f"run-{n}"))
        page = await store.list_page()
        assert (len(page.records), page.cursor is None) == (50, False)
        assert [record.run_id for record in (await store.list_page(cursor=page.cursor)).records] == ["run-0"]

    async def test_a_record_of_a_page_equals_the_loaded_one(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("queued", info=b"\0\xff", parent_run_id="gone", labels={"a": "☂", "": "' \\"}))
        await create_claimed(store, worker, make_run("running", labels={"a": ""}))
        await create_waiting(store, worker, make_run("waiting"), wake_on=["message"])
        records = (await store.list_page()).records
        assert [record.run_id for record in records] == ["waiting", "running", "queued"]
        for record in records:
            assert record == await load_record(store, record.run_id) == (await store.load(record.run_id)).record
        assert dict(records[-1].labels) == {"a": "☂", "": "' \\"}

    async def test_pages_repeat_and_skip_nothing_while_runs_come_and_go(self, store: RunStore, worker: str) -> None:
        names = [f"run-{n:02}" for n in range(12)]
        for name in names:
            await store.create(make_run(name))
        first = await store.list_page(limit=4)
        await store.remove(first.records[-1].run_id)  # the run at the cursor
        await store.remove(first.records[0].run_id)
        await store.remove("run-05")
        for n in range(5):
            await store.create(make_run(f"new-{n}"))
        await store.create(make_run("run-05"))
        await store.claim("run-06", worker)
        seen = [record.run_id for record in first.records]
        page = first
        while page.cursor is not None:
            page = await store.list_page(limit=4, cursor=page.cursor)
            seen += [record.run_id for record in page.records]
        assert seen == [name for name in reversed(names) if name != "run-05"]

    async def test_a_cursor_may_be_used_again_and_with_another_limit(self, store: RunStore) -> None:
        for n in range(6):
            await store.create(make_run(f"run-{n}"))
        cursor = (await store.list_page(limit=2)).cursor
        for limit in (1, 3, 50):
            page = await store.list_page(limit=limit, cursor=cursor)
            assert [record.run_id for record in page.records] == ["run-3", "run-2", "run-1", "run-0"][:limit]

    @pytest.mark.parametrize("cursor", WRONG_CURSORS, ids=lambda cursor: ascii(cursor)[:12])
    async def test_a_wrong_cursor_is_refused(self, store: RunStore, cursor: str) -> None:
        await store.create(make_run())
        with pytest.raises(InvalidCursor) as invalid:
            await store.list_page(cursor=cursor)
        assert invalid.value.cursor == cursor

    async def test_pages_and_listings_match_every_filter(self, store: RunStore, worker: str) -> None:
        await _create_varied_runs(store, worker)
        records = [record async for record in iter_runs(store)]
        assert len(records) == len(_VARIED)
        middle = records[len(records) // 2].created_at
        choices: dict[str, list[Any]] = {
            "interrupted": [False, True],
            "statuses": [None, frozenset({RunStatus.QUEUED, RunStatus.WAITING}), frozenset(RunStatus), frozenset()],
            "agent_name": [None, "A"],
            "caller_id": [None, "x"],
            "parent_run_id": [None, records[0].run_id],
            "tenant": [None, "acme", ""],
            "labels": [{}, {"team": "red"}, {"team": "red", "tier": "1"}, {"team": ""}],
            "created_after": [None, middle],
            "created_before": [None, middle, records[-1].created_at + timedelta(hours=1)],
        }
        sizes = set()
        for values in itertools.product(*choices.values()):
            fields = dict(zip(choices, values, strict=True))
            set_fields = sum(value != choice[0] for value, choice in zip(values, choices.values(), strict=True))
            if 2 < set_fields < len(choices):
                continue  # every field alone, every pair of fields, and all at once
            expected = [record.run_id for record in records if _matches(record, **fields)]
            sizes.add(len(expected))
            assert await list_run_ids(store, RunFilter(**fields)) == expected, fields
            assert await read_pages(store, RunFilter(**fields), limit=4) == expected[::-1], fields
        assert len(sizes) > 5, "the filters select different runs"

    async def test_a_filter_compares_whole_values(self, store: RunStore) -> None:
        await store.create(make_run(agent_name="agent", caller_id="caller", tenant="acme", labels={"team": "red"}))
        for filter in (
            RunFilter(agent_name="Agent"),
            RunFilter(agent_name="%"),
            RunFilter(caller_id=""),
            RunFilter(caller_id="call"),
            RunFilter(parent_run_id=""),
            RunFilter(tenant=""),
            RunFilter(tenant="Acme"),
            RunFilter(tenant="acm"),
            RunFilter(labels={"team": "Red"}),
            RunFilter(labels={"Team": "red"}),
            RunFilter(labels={"team": "re"}),
            RunFilter(labels={"red": "team"}),
            RunFilter(labels={"team": "red", "tier": ""}),
        ):
            assert await read_pages(store, filter) == [], filter
            assert await list_run_ids(store, filter) == [], filter
        assert await read_pages(store, RunFilter(labels={"team": "red"}, agent_name="agent")) == ["run-1"]
        assert await read_pages(store, RunFilter(tenant="acme")) == ["run-1"]


#: Agent, caller, whether it is a child of the first run, labels, and the status to create it in.
_VARIED: list[tuple[str, str, bool, dict[str, str], RunStatus | None]] = [
    (agent, caller, child, labels, status)
    for (agent, caller, child), (labels, status) in zip(
        itertools.product("AB", "xy", (False, True)),
        itertools.cycle(
            [
                ({}, RunStatus.QUEUED),
                ({"team": "red"}, RunStatus.WAITING),
                ({"team": "red", "tier": "1"}, RunStatus.RUNNING),
                ({"tier": "1"}, RunStatus.DONE),
                ({"team": "blue", "tier": "1"}, None),
            ]
        ),
        strict=False,
    )
]


async def _create_varied_runs(store: RunStore, worker: str) -> None:
    deregistered = await add_worker(store)
    for n, (agent, caller, child, labels, status) in enumerate(_VARIED):
        parent = "run-0" if child else None
        tenant = "acme" if n % 3 else ""
        run = make_run(
            f"run-{n}", agent_name=agent, caller_id=caller, parent_run_id=parent, tenant=tenant, labels=labels
        )
        if status is RunStatus.QUEUED:
            await store.create(run)
        elif status is RunStatus.WAITING:
            await create_waiting(store, worker, run)
        else:
            claim = await create_claimed(store, deregistered if status is None else worker, run)
            if status is RunStatus.DONE:
                await store.release(claim, Release(status=status))
    await store.deregister_worker(deregistered)


def _matches(record: RunRecord, **fields: Any) -> bool:
    """Say the contract of filters once more, field by field."""
    after, before = fields["created_after"], fields["created_before"]
    return all(
        (
            record.is_interrupted or not fields["interrupted"],
            fields["statuses"] is None or record.status in fields["statuses"],
            fields["agent_name"] in (None, record.agent_name),
            fields["caller_id"] in (None, record.caller_id),
            fields["parent_run_id"] in (None, record.parent_run_id),
            fields["tenant"] in (None, record.tenant),
            all(record.labels.get(name) == value for name, value in fields["labels"].items()),
            after is None or record.created_at >= after,
            before is None or record.created_at < before,
        )
    )
