"""`App.map`: results in order or as they end, errors as items, and the same batch again after a kill."""

import asyncio
import subprocess
import sys
import textwrap
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.failed_runs import fails_with

from holdfast import Agent, App, Reply
from holdfast.core.errors import Shutdown
from holdfast.errors import DefinitionError
from holdfast.runtime.run_map import run_batch


async def answer(messages: Any, tools: Any) -> Reply:
    prompt = messages[0].text
    if prompt == "bad":
        raise ValueError("no")
    return Reply(text=f"re: {prompt}")


def make_app(folder: Path) -> App:
    return App([Agent(name="a", model=answer)], f"sqlite:{folder / 'runs.db'}")


async def test_each_input_has_an_item_in_order_and_an_error_ends_nothing(tmp_path: Path) -> None:
    async with make_app(tmp_path) as app:
        prompts = ["one", "bad", "one", "two"]
        items = [item async for item in app.map("a", prompts, id="b1", concurrency=2, labels={"for": "test"})]
        assert [item.index for item in items] == [0, 1, 2, 3]
        assert [item.output for item in items if item.result] == ["re: one", "re: one", "re: two"]
        assert len({item.run_id for item in items}) == 4
        with fails_with(ValueError, match="no"):
            _ = items[1].output
        assert await app.count(labels={"batch": "b1", "for": "test"}) == 4
        assert await app.count(status="failed", labels={"batch": "b1"}) == 1
        assert await app.count(labels={"batch": "b2"}) == 0


async def test_items_come_as_they_end_and_no_more_than_asked_for_are_begun(tmp_path: Path) -> None:
    begun: list[str] = []
    slow = asyncio.Event()

    async def model(messages: Any, tools: Any) -> Reply:
        begun.append(messages[0].text)
        if messages[0].text == "slow":
            await slow.wait()
        return Reply(text=messages[0].text)

    async with App([Agent(name="a", model=model)], f"sqlite:{tmp_path / 'runs.db'}") as app:
        items = app.map("a", ["slow", "one", "two", "three"], id="b", concurrency=2, ordered=False)
        assert (await anext(items)).output == "one"
        assert begun == ["slow", "one"]
        assert (await anext(items)).output == "two"
        slow.set()
        assert {item.output async for item in items} == {"slow", "three"}


async def test_inputs_that_are_added_before_others_change_no_id(tmp_path: Path) -> None:
    async with make_app(tmp_path) as app:
        first = {item.prompt: item.run_id async for item in app.map("a", ["one", "two"], id="b")}
        second = {item.prompt: item.run_id async for item in app.map("a", ["zero", "one", "two"], id="b")}
        assert second == {**first, "zero": second["zero"]}
        assert await app.count() == 3


async def test_ids_come_from_the_batch_and_the_input_and_equal_inputs_are_numbered() -> None:
    async def run(prompt: Any, run_id: str) -> Any:
        return prompt

    digests = {"one": "0123456789abcdefXX", "two": "0123456789abcdefYY", "three": "f" * 64}
    items = run_batch(
        run, lambda prompt: digests[str(prompt)], ["one", "one", "three", "two", "one"], "b", 2, ordered=True
    )
    assert [item.run_id async for item in items] == [
        "b.0123456789abcdef",
        "b.0123456789abcdef.2",
        "b.ffffffffffffffff",
        "b.0123456789abcdef.3",
        "b.0123456789abcdef.4",
    ]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_caller_that_leaves_cancels_its_waits_and_lets_them_end(ordered: bool) -> None:
    ended: list[str] = []

    async def run(prompt: Any, run_id: str) -> Any:
        try:
            await (asyncio.sleep(0) if prompt == "one" else asyncio.Event().wait())
        finally:
            await asyncio.sleep(0)
            ended.append(prompt)

    items = run_batch(run, str, ["one", "two", "three"], "b", 3, ordered=ordered)
    async with aclosing(items):
        assert (await anext(items)).prompt == "one"
    assert ended == ["one", "two", "three"]


async def test_an_interruption_ends_the_batch_and_is_no_item() -> None:
    async def run(prompt: Any, run_id: str) -> Any:
        raise Shutdown("stop") if prompt == "two" else ValueError("no")

    items = run_batch(run, str, ["one", "two", "three"], "b", 3, ordered=True)
    first = await anext(items)
    assert (first.index, first.prompt, first.result, str(first.error)) == (0, "one", None, "no")
    with pytest.raises(Shutdown):
        await anext(items)


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    async with make_app(tmp_path) as app:
        with pytest.raises(DefinitionError, match="concurrency"):
            await anext(app.map("a", ["one"], id="b", concurrency=0))
        with pytest.raises(DefinitionError):
            app.map("a", ["one"], id="")


PROGRAM = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from pathlib import Path
    from holdfast import Agent, App, Reply

    async def model(messages, tools):
        prompt = messages[0].text
        with open("asked", "a") as file:
            file.write(prompt + "\\n")
        if prompt == "p7" and "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return Reply(text=prompt.upper())

    async def main():
        async with App([Agent(name="a", model=model)], "sqlite:runs.db") as app:
            async for item in app.map("a", [f"p{n}" for n in range(10)], id="b", concurrency=3):
                print(item.output, flush=True)

    asyncio.run(main())
    """
)


def test_a_killed_batch_continues_and_asks_for_no_finished_input_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    killed = subprocess.run([*command, "kill"], cwd=tmp_path, capture_output=True, text=True)
    assert killed.returncode == -9
    before = killed.stdout.split()
    assert 4 <= len(before) <= 7
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == [f"P{n}" for n in range(10)], done.stderr
    asked = (tmp_path / "asked").read_text().split()
    assert [asked.count(prompt.lower()) for prompt in before] == [1] * len(before)
    assert asked.count("p7") == 2
