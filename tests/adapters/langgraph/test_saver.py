"""`HoldfastSaver`: LangGraph's own conformance tests, and what it promises beyond them."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from tests.adapters.langgraph.support import SyncSaver, Thread, count_commits, make_config, make_messages

from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.db.tables import Cursor, TablesError


@dataclass
class Order:
    number: int


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'graph.db'}"


@pytest.fixture
async def saver(sqlite_url: str) -> AsyncIterator[HoldfastSaver]:
    async with HoldfastSaver.from_url(sqlite_url) as saver:
        yield saver


async def _assert_conformance(name: str, saver: HoldfastSaver) -> None:
    @checkpointer_test(name=name)
    async def make_saver() -> AsyncIterator[HoldfastSaver]:
        yield saver

    report = await validate(make_saver)
    failures = [each for result in report.results.values() for each in result.failures or ()]
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {
        each.value for each in ALL_CAPABILITIES
    }


async def test_it_passes_langgraphs_conformance_tests(durable_store_url: str) -> None:
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        await _assert_conformance("holdfast", saver)


async def test_its_sync_methods_pass_the_conformance_tests(sqlite_url: str) -> None:
    with SyncSaver.from_url(sqlite_url) as saver:
        await _assert_conformance("holdfast sync", saver)


# -- storage --------------------------------------------------------------------------------------------------------


async def test_a_list_that_grows_stores_each_item_once(saver: HoldfastSaver) -> None:
    thread, messages = Thread(saver), make_messages(100, size=1000)
    parent = await thread.put(messages[:1])
    for count in range(2, 101):
        parent = await thread.put(messages[:count], parent)
    assert await thread.load() == messages
    assert await _count_rows(saver) == {"checkpoint": 100, "value": 100, "item": 100, "write": 0}
    sizes = await _query(saver, "SELECT SUM(LENGTH(body)) FROM langgraph_{}")
    assert sizes["value"] < 100 * 30  # a list is a reference to its items


async def test_every_checkpoint_loads_as_it_was_put_after_edits_and_forks_in_two_processes(
    durable_store_url: str,
) -> None:
    chance = random.Random(7)
    pool = make_messages(40)
    expected: list[tuple[Any, list[Any]]] = []
    async with HoldfastSaver.from_url(durable_store_url) as one, HoldfastSaver.from_url(durable_store_url) as two:
        for _ in range(80):
            thread = Thread(chance.choice([one, two]))
            parent, messages = chance.choice(expected[-6:]) if expected else (None, [])
            edited = _edit(chance, pool, list(messages))
            expected.append((await thread.put(edited, parent), edited))
        for config, messages in expected:
            assert await Thread(one).load(config) == messages


def _edit(chance: random.Random, pool: list[HumanMessage], messages: list[HumanMessage]) -> list[HumanMessage]:
    match chance.randrange(6):
        case 0 if len(messages) > 3:
            del messages[: chance.randrange(1, 4)]
        case 1 if messages:
            place = chance.randrange(len(messages))
            messages[place] = HumanMessage(f"edited {chance.random()}".ljust(300), id=messages[place].id)
        case 2 if messages:
            messages.pop()
        case _:
            messages += chance.sample(pool, chance.randrange(1, 4))
    return messages


async def test_a_list_that_another_process_deleted_is_stored_again(durable_store_url: str) -> None:
    messages = make_messages(10)
    async with HoldfastSaver.from_url(durable_store_url) as one, HoldfastSaver.from_url(durable_store_url) as two:
        parent = await Thread(one).put(messages[:9])
        await two.adelete_thread("thread")
        await Thread(one).put(messages, parent)
        assert await Thread(two).load() == messages


async def test_prune_gives_back_the_space_of_older_values(saver: HoldfastSaver) -> None:
    thread, messages = Thread(saver), make_messages(12)
    parent = await thread.put(messages[:6])
    parent = await thread.put(messages[6:], parent)
    await saver.aprune(["thread"])
    assert await thread.load() == messages[6:]
    assert await _count_rows(saver) == {"checkpoint": 1, "value": 1, "item": 6, "write": 0}
    await thread.put(messages, parent)
    assert await thread.load() == messages


async def _count_rows(saver: HoldfastSaver) -> dict[str, int]:
    return await _query(saver, "SELECT COUNT(*) FROM langgraph_{}")


async def _query(saver: HoldfastSaver, sql: str) -> dict[str, int]:
    async def work(cursor: Cursor) -> dict[str, int]:
        tables = ("checkpoint", "value", "item", "write")
        return {name: (await cursor.execute(sql.format(name)))[0][0] for name in tables}

    return await saver._database.read(work)


async def test_a_copied_thread_is_independent_of_its_source(durable_store_url: str) -> None:
    messages = make_messages(4)
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        await Thread(saver).put(messages)
        await saver.acopy_thread("thread", "copy")
        await saver.adelete_thread("thread")
        assert await Thread(saver, "copy").load() == messages
        with pytest.raises(TablesError, match="exists already"):
            await saver.acopy_thread("thread", "copy")


# -- group commit ---------------------------------------------------------------------------------------------------


async def test_puts_at_the_same_time_share_a_commit(saver: HoldfastSaver, tmp_path: Path) -> None:
    before = count_commits(tmp_path / "graph.db")
    await asyncio.gather(*(Thread(saver, str(number)).put(make_messages(2)) for number in range(64)))
    assert count_commits(tmp_path / "graph.db") - before <= 4
    assert len([found async for found in saver.alist(None)]) == 64


async def test_a_put_that_is_refused_fails_alone(durable_store_url: str) -> None:
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        puts = [Thread(saver, name).put(make_messages(1)) for name in ("one", "with \0 NUL", "two")]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(result, TablesError) for result in results] == [False, True, False]
        assert await Thread(saver, "two").load() == make_messages(1)


# -- serialisation --------------------------------------------------------------------------------------------------


async def test_an_object_of_a_listed_class_is_loaded_and_of_another_is_plain_data(sqlite_url: str) -> None:
    async with HoldfastSaver.from_url(sqlite_url, types=[Order]) as saver:
        await Thread(saver).put([Order(7)])
        assert await Thread(saver).load() == [Order(7)]
    async with HoldfastSaver.from_url(sqlite_url) as saver:
        assert await Thread(saver).load() == [{"number": 7}]


async def test_a_value_that_only_pickle_can_store_is_refused(saver: HoldfastSaver) -> None:
    with pytest.raises(TypeError, match="serializable"):
        await Thread(saver).put([lambda: None])


# -- use ------------------------------------------------------------------------------------------------------------


async def test_a_sync_call_on_the_savers_own_event_loop_is_refused(saver: HoldfastSaver) -> None:
    with pytest.raises(TablesError, match="ainvoke"):
        saver.get_tuple(make_config())


async def test_a_saver_that_is_not_open_says_so(sqlite_url: str) -> None:
    saver = HoldfastSaver.from_url(sqlite_url)
    with pytest.raises(TablesError, match="async with"):
        await saver.aget_tuple(make_config())
    async with saver:
        await Thread(saver).put(make_messages(1))
    async with saver:  # it may be opened again
        assert await Thread(saver).load() == make_messages(1)


async def test_a_saver_that_is_closed_leaves_one_file(sqlite_url: str, tmp_path: Path) -> None:
    async with HoldfastSaver.from_url(sqlite_url) as saver:
        await Thread(saver).put(make_messages(1))
        assert len(list(tmp_path.iterdir())) > 1, "the write-ahead log is a file of its own"
    assert [path.name for path in tmp_path.iterdir()] == ["graph.db"]


async def test_one_saver_serves_several_event_loops(saver: HoldfastSaver) -> None:
    def put_elsewhere() -> None:
        asyncio.run(Thread(saver, "elsewhere").put(make_messages(1)))

    await asyncio.to_thread(put_elsewhere)
    assert await Thread(saver, "elsewhere").load() == make_messages(1)


async def test_a_version_of_another_branch_differs(saver: HoldfastSaver) -> None:
    first = saver.get_next_version(None, None)
    assert saver.get_next_version(first, None) != saver.get_next_version(first, None)
    assert first < saver.get_next_version(first, None)
