"""Sessions of the SDK in SQLite and PostgreSQL."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from agents import Agent, Runner
from agents.memory import Session, SessionSettings
from tests.adapters.openai_agents.scripted_model import ScriptedModel
from tests.adapters.openai_agents.session_process import SESSION, make_pair

from holdfast import App
from holdfast.adapters.openai_agents import HoldfastSessions
from holdfast.core.errors import PayloadError
from holdfast.db.tables import TablesError


@pytest.fixture
async def sessions(durable_store_url: str) -> AsyncIterator[HoldfastSessions]:
    async with HoldfastSessions.from_url(durable_store_url) as sessions:
        yield sessions


def make_items(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


async def test_the_sdk_continues_a_session_in_another_process(durable_store_url: str) -> None:
    requests: list[list[Any]] = []
    for prompt in ("one", "two"):
        model = ScriptedModel(f"answer to {prompt}")
        async with App([], durable_store_url), HoldfastSessions.from_url(durable_store_url) as sessions:
            result = await Runner.run(Agent(name="a", model=model), prompt, session=sessions.get("ada"))
        assert result.final_output == f"answer to {prompt}"
        requests += model.requests
    first, second = requests
    assert [item["content"] for item in first] == ["one"]
    assert [item["role"] for item in second] == ["user", "assistant", "user"]
    assert second[1]["content"][0]["text"] == "answer to one"


@pytest.mark.parametrize("opened", ["with", "async with"])
def test_run_sync_continues_a_session(durable_store_url: str, opened: str) -> None:
    model = ScriptedModel("an answer")

    def chat(sessions: HoldfastSessions) -> None:
        with asyncio.Runner() as loops:
            asyncio.set_event_loop(loops.get_loop())  # otherwise the SDK leaves one open
            for prompt in ("one", "two"):
                Runner.run_sync(Agent(name="a", model=model), prompt, session=sessions.get("ada"))
        asyncio.set_event_loop(None)

    async def open_and_chat() -> None:
        async with HoldfastSessions.from_url(durable_store_url) as sessions:
            await asyncio.to_thread(chat, sessions)

    if opened == "with":
        with HoldfastSessions.from_url(durable_store_url) as sessions:
            chat(sessions)
    else:
        asyncio.run(open_and_chat())
    assert [len(request) for request in model.requests] == [1, 3]


async def test_items_are_kept_in_order_limited_popped_and_cleared(sessions: HoldfastSessions) -> None:
    session, other = sessions.get("ada"), sessions.get("bob")
    assert isinstance(session, Session)
    await other.add_items(make_items("x"))
    await session.add_items(make_items("one", "two"))
    await session.add_items([])
    await session.add_items(make_items("three"))
    assert await session.get_items() == make_items("one", "two", "three")
    assert await session.get_items(2) == make_items("two", "three")
    assert await session.get_items(0) == await session.get_items(-1) == []
    assert await sessions.get("ada", settings=SessionSettings(limit=1)).get_items() == make_items("three")
    assert await session.pop_item() == make_items("three")[0]
    await session.add_items(make_items("four"))
    assert await session.get_items() == make_items("one", "two", "four")
    await session.clear_session()
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    assert await other.get_items() == make_items("x")


async def test_an_item_that_cannot_be_stored_is_refused_with_all_of_its_call(sessions: HoldfastSessions) -> None:
    session = sessions.get("ada")
    with pytest.raises(PayloadError, match="an item of a session cannot be stored"):
        await session.add_items([*make_items("one"), object()])  # type: ignore[list-item]
    with pytest.raises(TablesError, match="cannot be kept"):
        await sessions.get("a\0").add_items(make_items("one"))
    assert await session.get_items() == []


async def test_the_items_of_one_call_stay_together_with_two_writers(durable_store_url: str) -> None:
    async def add(sessions: HoldfastSessions, writer: str) -> None:
        for number in range(20):
            await sessions.get(SESSION).add_items(make_pair(writer, number))

    async with (
        HoldfastSessions.from_url(durable_store_url) as one,
        HoldfastSessions.from_url(durable_store_url) as two,
    ):
        await asyncio.gather(add(one, "one"), add(two, "two"))
        popped = await asyncio.gather(one.get(SESSION).pop_item(), two.get(SESSION).pop_item())
        items = list(await one.get(SESSION).get_items())
    [first_of_pair] = [item for item in popped if cast(Any, item)["role"] == "user"]
    assert sorted(cast(Any, item)["role"] for item in popped) == ["assistant", "user"]
    assert _count_pairs([*items, *make_pair(*_split(cast(Any, first_of_pair)["content"]))]) == {"one": 20, "two": 20}


async def test_writers_that_are_killed_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'chat.db'}"
    acknowledged = _run_until_killed(url)
    async with HoldfastSessions.from_url(url) as sessions:
        counts = _count_pairs(list(await sessions.get(SESSION).get_items()))
    for writer in ("parent", "child"):
        assert counts[writer] >= acknowledged.count(writer) > 0


def _count_pairs(items: list[Any]) -> Counter[str]:
    """Return the number of pairs of each writer. Every pair is there as a whole, and those of a writer in order."""
    pairs = [_split(items[start]["content"]) for start in range(0, len(items), 2)]
    assert items == [item for pair in pairs for item in make_pair(*pair)]
    counts = Counter(writer for writer, _ in pairs)
    for each in counts:
        assert [number for writer, number in pairs if writer == each] == list(range(counts[each]))
    return counts


def _split(pair: str) -> tuple[str, int]:
    writer, number = pair.split()
    return writer, int(number)


def _run_until_killed(url: str) -> list[str]:
    """Return the writer of each acknowledged pair, until both were killed."""
    command = [sys.executable, "-m", "tests.adapters.openai_agents.session_process", url]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as parent:
        assert parent.stdout is not None
        writers: list[str] = []
        while min(writers.count("parent"), writers.count("child")) < 5:
            writers.append(parent.stdout.readline().decode().split()[0])
        os.killpg(parent.pid, signal.SIGKILL)
        writers += [line.decode().split()[0] for line in parent.stdout.readlines()]
    return writers
