"""The rows of `HoldfastSaver`: how lists are stored, listed and rebuilt. In memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from tests.adapters.langgraph.support import Thread, make_config, make_messages

from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.adapters.langgraph.saver.holdfast_saver import make_serde
from holdfast.adapters.langgraph.saver.saver_database import SaverDatabase
from holdfast.adapters.langgraph.saver.saver_schema import make_schema
from holdfast.adapters.langgraph.saver.values import (
    EncodedList,
    ListCache,
    ListIndex,
    Range,
    decode_ranges,
    encode_value,
    index_loaded_list,
    make_digest,
    plan_list,
)
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Cursor, TablesError, TablesUnavailable


def make_saver(tables: MemoryTables) -> HoldfastSaver:
    return HoldfastSaver(SaverDatabase(tables, make_schema(postgres=False)), serde=make_serde(()))


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
async def saver(tables: MemoryTables) -> AsyncIterator[HoldfastSaver]:
    async with make_saver(tables) as saver:
        yield saver


async def query(tables: MemoryTables, sql: str) -> Sequence[tuple[Any, ...]]:
    async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
        return await cursor.execute(sql)

    return await tables.read(work)


# -- plans of lists -------------------------------------------------------------------------------------------------


def encode(*texts: str) -> EncodedList:
    return EncodedList([("bytes", text.encode()) for text in texts])


def place(texts: Sequence[str], stream: int, numbers: Sequence[int]) -> dict[bytes, tuple[int, int]]:
    items = encode(*texts).items
    return {make_digest(item): (stream, number) for item, number in zip(items, numbers, strict=True)}


def test_a_list_of_fewer_than_512_bytes_is_stored_with_its_version() -> None:
    assert encode("x" * 500, "y" * 11).is_small()
    assert not encode("x" * 500, "y" * 12).is_small()


class OwnSerde(JsonPlusSerializer):
    """May encode equal items differently."""


def test_only_lists_of_objects_are_encoded_item_by_item() -> None:
    serde = JsonPlusSerializer()
    assert encode_value(serde, ["a", 1]) == EncodedList([serde.dumps_typed("a"), serde.dumps_typed(1)])
    for value in ([], [1, "a"], [0.5], ("a",), "a", {"a": 1}):
        assert encode_value(serde, value) == serde.dumps_typed(value)
    assert encode_value(OwnSerde(), ["a"]) == serde.dumps_typed(["a"])


def test_the_items_of_a_new_list_are_numbered_from_zero() -> None:
    plan = plan_list(encode("a", "b", "a"), "v1", None, new_stream=False)
    stream = plan.index.stream
    assert plan.new_items == {(stream, 0): ("bytes", b"a"), (stream, 1): ("bytes", b"b")}
    assert decode_ranges(plan.body) == [Range(stream, 0, 2), Range(stream, 0, 1)]
    assert plan.index == ListIndex("v1", place(["a", "b"], stream, [0, 1]), stream, 2)


def test_a_list_that_grew_continues_its_stream_unless_another_process_did() -> None:
    index = ListIndex("v1", place(["a", "b"], 7, [3, 4]), 7, 5)
    plan = plan_list(encode("a", "b", "c"), "v2", index, new_stream=False)
    assert (plan.new_items, decode_ranges(plan.body)) == ({(7, 5): ("bytes", b"c")}, [Range(7, 3, 6)])
    assert (plan.index.version, plan.index.stream, plan.index.next_number) == ("v2", 7, 6)
    plan = plan_list(encode("a", "b", "c"), "v2", index, new_stream=True)
    stream = plan.index.stream
    assert stream != 7
    assert (plan.new_items, plan.index.next_number) == ({(stream, 0): ("bytes", b"c")}, 1)
    assert decode_ranges(plan.body) == [Range(7, 3, 5), Range(stream, 0, 1)]


def test_a_list_whose_items_are_in_more_than_32_places_is_stored_anew() -> None:
    texts = [str(number) for number in range(33)]
    index = ListIndex("v1", place(texts, 7, range(0, 66, 2)), 7, 66)
    plan = plan_list(encode(*texts[:32]), "v2", index, new_stream=False)
    assert (plan.new_items, len(decode_ranges(plan.body))) == ({}, 32)
    plan = plan_list(encode(*texts), "v2", index, new_stream=False)
    assert decode_ranges(plan.body) == [Range(plan.index.stream, 0, 33)]
    assert (plan.index.stream != 7, len(plan.new_items)) == (True, 33)
    again = plan_list(encode(*texts, *texts[::-2], *texts[::-2]), "v2", index, new_stream=False)
    assert len(decode_ranges(again.body)) == 35, "items that occur again are in places of their own"


def test_the_index_of_a_list_that_was_read_continues_its_last_range() -> None:
    ranges = [Range(7, 3, 5), Range(9, 0, 1)]
    assert index_loaded_list("v1", ranges, encode("a", "b", "c").items) == ListIndex(
        "v1", place(["a", "b"], 7, [3, 4]) | place(["c"], 9, [0]), 9, 1
    )
    assert make_digest(("bytes", b"a")) != make_digest(("msgpack", b"a"))


def test_the_cache_holds_200000_items_or_one_list() -> None:
    large = ListIndex("v", {number.to_bytes(4): (0, number) for number in range(199_999)}, 0, 0)
    small = ListIndex("v", {b"a": (0, 0)}, 0, 1)
    cache, (one, two, three) = ListCache(), [("thread", "", name) for name in ("one", "two", "three")]
    cache.put(one, large)
    cache.put(two, small)
    assert (cache.get(one), cache.get(two)) == (large, small)
    cache.put(three, small)
    assert (cache.get(one), cache.get(two), cache.get(three)) == (None, small, small)
    whole = ListIndex("v", large.places | {b"a": (0, 0), b"b": (0, 1)}, 0, 0)
    cache.put(one, whole)
    assert (cache.get(one), cache.get(two), cache.get(three)) == (whole, None, None)


# -- several processes ----------------------------------------------------------------------------------------------


async def test_a_list_that_another_process_extended_is_read_and_continued(tables: MemoryTables) -> None:
    messages = make_messages(30)
    async with make_saver(tables) as one, make_saver(tables) as two:
        first = await Thread(one).put(messages[:10])
        second = await Thread(two).put(messages[:11], first)  # it has read the first one
        assert await query(tables, "SELECT COUNT(*) FROM langgraph_item") == [(11,)]
        third = await Thread(two).put(messages[10:20], second)
        await Thread(one).put(messages[10:21], third)
        assert await query(tables, "SELECT COUNT(*) FROM langgraph_item") == [(21,)]
        assert await Thread(two).load() == messages[10:21]


async def test_what_was_put_by_a_cancelled_caller_is_written(saver: HoldfastSaver) -> None:
    puts = [asyncio.create_task(Thread(saver, name).put(make_messages(1))) for name in ("one", "two")]
    await asyncio.sleep(0)
    puts[0].cancel()
    await puts[1]
    with pytest.raises(asyncio.CancelledError):
        await puts[0]
    assert await Thread(saver, "one").load() == await Thread(saver, "two").load() == make_messages(1)


async def test_of_two_puts_the_one_that_is_refused_fails_alone(saver: HoldfastSaver) -> None:
    puts = [Thread(saver, name).put(make_messages(1)) for name in ("one", "with \0 NUL")]
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [isinstance(result, TablesError) for result in results] == [False, True]


class BusyTables(MemoryTables):
    """Counts its transactions. They fail while it is busy."""

    is_busy = False
    transactions = 0

    async def transaction(self, work: Any, *, lock: Any = ()) -> Any:
        self.transactions += 1
        if self.is_busy:
            raise TablesUnavailable("busy")
        return await super().transaction(work, lock=lock)


async def test_a_database_that_does_not_answer_is_asked_once_for_all_puts() -> None:
    tables = BusyTables()
    async with make_saver(tables) as saver:
        tables.is_busy, before = True, tables.transactions
        puts = [Thread(saver, str(number)).put(make_messages(1)) for number in range(5)]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(result) for result in results] == [TablesUnavailable] * 5
        assert tables.transactions == before + 1


# -- opening --------------------------------------------------------------------------------------------------------


def list_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-tables"]


async def test_a_saver_is_opened_once_at_a_time(saver: HoldfastSaver) -> None:
    with pytest.raises(TablesError, match="the saver is open already"):
        await saver.__aenter__()
    with pytest.raises(TablesError, match="the saver is open already"):
        saver.__enter__()
    assert await saver.aget_tuple(make_config()) is None, "it is still open"


def test_a_sync_saver_has_a_thread_while_it_is_open(tables: MemoryTables) -> None:
    saver = make_saver(tables)
    saver.__exit__(None, None, None)  # it is not open
    for _ in range(2):
        with pytest.raises(TablesError, match="the saver is not open: use it within `async with` or `with`"):
            saver.get_tuple(make_config())
        with saver:
            assert saver.get_tuple(make_config()) is None
            assert asyncio.run(saver.aget_tuple(make_config())) is None
            assert list_threads() == ["holdfast-tables"]
        assert list_threads() == []


def test_a_sync_saver_whose_database_cannot_be_opened_leaves_no_thread() -> None:
    tables = BusyTables()
    tables.is_busy, saver = True, make_saver(tables)
    with pytest.raises(TablesUnavailable, match="busy"):
        saver.__enter__()
    assert list_threads() == []
    tables.is_busy = False
    with saver:
        assert saver.get_tuple(make_config()) is None


async def test_a_saver_that_closes_finishes_what_was_put(tables: MemoryTables) -> None:
    async with make_saver(tables) as saver:
        put = asyncio.create_task(Thread(saver).put(make_messages(1)))
        await asyncio.sleep(0)
    assert await query(tables, "SELECT COUNT(*) FROM langgraph_checkpoint") == [(1,)]
    await put


# -- rows -----------------------------------------------------------------------------------------------------------


async def test_the_key_of_a_row_names_what_it_is_stored_for(saver: HoldfastSaver, tables: MemoryTables) -> None:
    sql = "SELECT name FROM pragma_table_info('langgraph_{}') WHERE pk ORDER BY pk"
    keys = {name: await query(tables, sql.format(name)) for name in ("checkpoint", "value", "item", "write")}
    assert {name: " ".join(row[0] for row in rows) for name, rows in keys.items()} == {
        "checkpoint": "thread_id ns checkpoint_id",
        "value": "thread_id ns channel version",
        "item": "thread_id ns channel stream number",
        "write": "thread_id ns checkpoint_id task_id idx",
    }


async def test_writes_of_a_task_stay_and_its_errors_are_replaced(saver: HoldfastSaver) -> None:
    config = await Thread(saver).put([])
    for number in (1, 2):
        writes = [("lines", f"line {number}"), ("count", number), ("__error__", f"error {number}")]
        await saver.aput_writes(config, writes, "task", "path")
    found = await saver.aget_tuple(config)
    assert found is not None
    assert sorted(found.pending_writes or []) == [
        ("task", "__error__", "error 2"),
        ("task", "count", 1),
        ("task", "lines", "line 1"),
    ]


async def test_writes_are_in_the_order_in_which_langgraph_applies_them(saver: HoldfastSaver) -> None:
    config = await Thread(saver).put([])
    for path, task_id in (("b", "1"), ("a", "2"), ("c", "0")):
        await saver.aput_writes(config, [("lines", f"{path} 1"), ("lines", f"{path} 2")], task_id, path)
    found = await saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes is not None
    assert [value for _, _, value in found.pending_writes] == ["a 1", "a 2", "b 1", "b 2", "c 1", "c 2"]


async def test_a_delete_comes_after_the_puts_that_wait(saver: HoldfastSaver) -> None:
    put = asyncio.create_task(Thread(saver).put(make_messages(1)))
    await asyncio.sleep(0)
    await saver.adelete_thread("thread")
    await put
    assert await saver.aget_tuple(make_config()) is None


def make_checkpoint(number: int, versions: dict[str, Any] | None = None, values: Any = None) -> Checkpoint:
    checkpoint = empty_checkpoint()
    checkpoint["id"], checkpoint["channel_versions"] = f"{number:04}", versions or {}
    checkpoint["channel_values"] = values or {}
    return checkpoint


async def put_chain(saver: HoldfastSaver, count: int, seed: int, channels: Sequence[str] = ("lines",)) -> None:
    """Put checkpoints, each after the one before it and with a write to each channel. Number `seed` has values."""

    async def put(number: int) -> None:
        parent = make_config(checkpoint_id=f"{number - 1:04}" if number else None)
        versions: dict[str, Any] = dict.fromkeys(channels, str(number)) if number >= seed else {}
        values = {name: [f"{name} at {number}"] for name in channels} if number == seed else {}
        checkpoint = make_checkpoint(number, versions, values)
        metadata: Any = {"source": "loop", "step": number, "run_id": f"run {number % 2}"}
        if number == count - 1:
            metadata["counters_since_delta_snapshot"] = dict.fromkeys(channels, 1)
        config = await saver.aput(parent, checkpoint, metadata, versions if values else {})
        writes = [(name, f"{name} {number}") for name in channels]
        await saver.aput_writes(config, writes, "task")

    await asyncio.gather(*map(put, range(count)))


@pytest.mark.parametrize("seed", [0, 218, 219, 400])
async def test_a_delta_channel_is_rebuilt_over_several_pages(saver: HoldfastSaver, seed: int) -> None:
    await put_chain(saver, 420, seed)
    history = await saver.aget_delta_channel_history(config=make_config(), channels=["lines", "other"])
    assert history["lines"]["seed"] == [f"lines at {seed}"]
    assert [value for _, _, value in history["lines"]["writes"]] == [f"lines {number}" for number in range(seed, 419)]
    assert history["other"] == {"writes": []}
    await saver.aprune(["thread"])
    kept = [found.checkpoint["id"] async for found in saver.alist(make_config())]
    assert kept == [f"{number:04}" for number in range(419, seed - 1, -1)]
    assert await saver.aget_delta_channel_history(config=make_config(), channels=["lines", "other"]) == history


async def test_a_thread_that_is_not_there_has_no_history(saver: HoldfastSaver) -> None:
    assert await saver.aget_delta_channel_history(config=make_config(), channels=["a"]) == {"a": {"writes": []}}
    assert await saver.aget_tuple(make_config()) is None
    await saver.aprune(["thread"])


def at(number: int) -> RunnableConfig:
    return make_config(checkpoint_id=f"{number:04}")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(119, -1, -1)),
        ({"limit": 0}, []),
        ({"limit": 1}, [119]),
        ({"limit": 49}, range(119, 70, -1)),
        ({"limit": 51}, range(119, 68, -1)),
        ({"before": at(60)}, range(59, -1, -1)),
        ({"before": at(60), "limit": 55}, range(59, 4, -1)),
        ({"filter": {"step": 7}}, [7]),
        ({"filter": {"step": 7, "source": "loop"}}, [7]),
        ({"filter": {"step": 7, "source": "input"}}, []),
        ({"filter": {"run_id": "run 1"}, "limit": 40}, range(119, 39, -2)),
    ],
)
async def test_checkpoints_are_listed_page_by_page(saver: HoldfastSaver, options: Any, expected: Any) -> None:
    await put_chain(saver, 120, 0)
    found = [each async for each in saver.alist(make_config(), **options)]
    assert [each.metadata["step"] for each in found] == [*expected]
    for each in found:
        step = each.metadata["step"]
        assert each.checkpoint["channel_values"] == ({} if step else {"lines": ["lines at 0"]})
        assert each.config == at(step)
        assert each.parent_config == (at(step - 1) if step else None)
        assert each.pending_writes == [("task", "lines", f"lines {step}")]


async def test_a_listing_is_of_one_thread_one_namespace_one_checkpoint_or_of_all(saver: HoldfastSaver) -> None:
    for thread_id, ns in (("a", ""), ("a", "inner"), ("b", "")):
        await saver.aput(make_config(thread_id, ns=ns), make_checkpoint(1), {"step": 1}, {})
    only: RunnableConfig = {"configurable": {"thread_id": "a"}}
    one: RunnableConfig = {"configurable": {"checkpoint_id": "0002"}}
    for config, count in ((None, 3), (make_config("a"), 1), (make_config("a", ns="inner"), 1), (only, 2), (one, 0)):
        assert len([each async for each in saver.alist(config)]) == count


async def test_the_checkpoints_of_runs_are_deleted_with_the_values_that_only_they_have(
    saver: HoldfastSaver, tables: MemoryTables
) -> None:
    messages = make_messages(9)
    first = await Thread(saver).put(messages[:4])
    for run_id, shown in (("run 1", messages[:6]), ("run 2", messages[:8]), ("run 3", messages[8:])):
        checkpoint = make_checkpoint(1, {"messages": run_id}, {"messages": shown})
        checkpoint["id"] = f"9 {run_id}"
        metadata: Any = {"source": "loop", "run_id": run_id}
        stored = await saver.aput(first, checkpoint, metadata, {"messages": run_id})
        await saver.aput_writes(stored, [("messages", "m")], "task")
    await saver.adelete_for_runs(["run 1", "run 2", "none"])
    assert [found.metadata.get("run_id") async for found in saver.alist(None)] == ["run 3", None]
    assert await Thread(saver).load(first) == messages[:4]
    assert await Thread(saver).load() == messages[8:]
    counts = [await query(tables, f"SELECT COUNT(*) FROM langgraph_{name}") for name in ("value", "item", "write")]
    assert counts == [[(2,)], [(4,)], [(1,)]]


async def test_items_that_are_missing_are_an_error(saver: HoldfastSaver, tables: MemoryTables) -> None:
    await Thread(saver).put(make_messages(10))
    await query(tables, "DELETE FROM langgraph_item WHERE number = 9")
    with pytest.raises(TablesError, match=r"thread thread: items of channel messages at version .* are missing"):
        await Thread(saver).load()


async def test_a_prune_strategy_is_known(saver: HoldfastSaver) -> None:
    await put_chain(saver, 3, 0)
    with pytest.raises(TablesError, match="'all' is not a prune strategy"):
        await saver.aprune(["thread"], strategy="all")
    await saver.aprune(["thread"], strategy="delete")
    assert [each async for each in saver.alist(None)] == []


@pytest.mark.parametrize("current", [None, "00000007.abcd", 7])
def test_a_version_counts_up(current: Any) -> None:
    saver = make_saver(MemoryTables())
    version = saver.get_next_version(current, None)
    number, _, unique = version.partition(".")
    assert (number, len(unique) >= 4) == ("00000001" if current is None else "00000008", True)
