"""The result of a call may come before its tool has returned `Deferred`, also if the process ends in between."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from tests.core.execution.early_result_process import make_agent
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Deferred, ToolResult, current_call, tool
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.store import END, RunStore, get_record
from holdfast.core.agents.calls import NOT_EXECUTED, Completed, Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.state import StepCalls
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore


class Renderer:
    """An agent whose tool passes its token on, and gets its result from another process before it returns."""

    def __init__(self, *calls: Any, effect: str = "once") -> None:
        self.app: App | None = None
        self.tokens: list[str] = []
        self.refused: list[type[Exception]] = []

        @tool(effect=Effect(effect))
        async def render() -> Deferred:
            token = current_call().completion_token
            self.tokens.append(token)
            await self.complete(token, "sea.png")
            return Deferred()

        self.model = ScriptedModel(*(calls or (tool_reply(call("1", "render")),)), "done")
        self.agent = Agent(name="a", model=self.model, tools=[render])

    async def complete(self, token: str, result: Any) -> None:
        assert self.app is not None
        await self.app.complete_call(token, result)

    @property
    def results(self) -> list[Any]:
        return [message.content for message in self.model.requests[-1] if isinstance(message, ToolResult)]


@pytest.mark.parametrize("effect", ["once", "pure"])
async def test_a_result_may_come_before_its_tool_has_returned(store_url: str, effect: str) -> None:
    renderer = Renderer(effect=effect)
    async with App([renderer.agent], store_url) as app:
        renderer.app = app
        assert (await app.run("a", "go", run_id="r", through_waits=True)).output == "done"
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()
        with pytest.raises(NotWaiting):
            await app.complete_call(renderer.tokens[0], "late")
    assert (len(renderer.tokens), renderer.results) == (1, ["sea.png"])


async def test_each_step_has_results_of_its_own_although_the_model_uses_a_call_id_again(store_url: str) -> None:
    renderer = Renderer(tool_reply(call("1", "render")), tool_reply(call("1", "render")))
    results = iter(["first", "second"])

    async def complete(token: str, result: Any) -> None:
        assert renderer.app is not None
        await renderer.app.complete_call(token, next(results))
        if len(renderer.tokens) == 2:
            with pytest.raises(NotWaiting):
                await renderer.app.complete_call(renderer.tokens[0], "late")

    renderer.complete = complete  # type: ignore[method-assign]
    async with App([renderer.agent], store_url) as app:
        renderer.app = app
        assert (await app.run("a", "go", run_id="r", through_waits=True)).output == "done"
    assert renderer.results == ["first", "second"]


async def test_a_forged_or_second_early_result_is_refused() -> None:
    renderer = Renderer()

    async def complete(token: str, result: Any) -> None:
        assert renderer.app is not None
        run_id, _, secret = token.rpartition("~")
        step, middle, signature = secret.split(".")
        forged = [
            f"{step}.{middle}.{'0' * len(signature)}",
            f"{step}.{'A' * len(middle)}.{signature}",
            f"7.{middle}.{signature}",
            f"{step}.{middle}",
            f"x.{middle}.{signature}",
            middle,
        ]
        for each in forged:
            with pytest.raises(NotWaiting):
                await renderer.app.complete_call(f"{run_id}~{each}", "forged")
        await renderer.app.complete_call(token, result)
        with pytest.raises(AlreadyAnswered):
            await renderer.app.complete_call(token, "again")

    renderer.complete = complete  # type: ignore[method-assign]
    async with App([renderer.agent], "memory:") as app:
        renderer.app = app
        assert (await app.run("a", "go", run_id="r", through_waits=True)).output == "done"
    assert renderer.results == ["sea.png"]


async def do_nothing(token: str) -> None:
    pass


def start_process(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.core.execution.early_result_process", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def read_calls(store: RunStore) -> StepCalls:
    return decode((await get_record(store, "r")).progress, Progress).calls


async def kill_with_token(url: str, effect: str = "once", kind: str = "async") -> str:
    """A run whose process was killed while its tool ran; the token, which the store knows."""
    with start_process(url, effect, kind, "token") as process:
        try:
            assert process.stdout is not None
            token = (await asyncio.to_thread(process.stdout.readline)).strip()
            async with App([], url, worker=False) as app:
                assert app.store is not None
                while not (await read_calls(app.store)).tokens:
                    await app.store.wait_for_change(timedelta(seconds=1))
        finally:
            process.kill()
    return token


async def resume(url: str, effect: str, kind: str = "async") -> tuple[list[Any], int]:
    """Resume the run to its end. Return the results that the model saw, and how often the tool was called."""
    called: list[str] = []

    async def note(token: str) -> None:
        called.append(token)

    agent, model = make_agent(effect, kind, note, "done")
    async with App([agent], url) as app:
        assert (await app.result("r", through_waits=True)).output == "done"
    return [each.content for each in model.requests[-1] if isinstance(each, ToolResult)], len(called)


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize(("effect", "calls"), [("once", 0), ("idempotent", 1)])
async def test_an_early_result_survives_a_kill_before_its_tool_returns(
    durable_store_url: str, effect: str, calls: int, kind: str
) -> None:
    with start_process(durable_store_url, effect, kind, "complete") as process:
        assert process.wait(60) == -9
    assert await resume(durable_store_url, effect, kind) == (["sea.png"], calls)


@pytest.mark.parametrize(("effect", "calls"), [("once", 0), ("idempotent", 1)])
async def test_a_result_may_come_after_the_process_was_killed_and_before_the_run_resumes(
    durable_store_url: str, effect: str, calls: int
) -> None:
    token = await kill_with_token(durable_store_url, effect)
    async with App([], durable_store_url, worker=False) as app:
        await app.complete_call(token, "sea.png")
        with pytest.raises(AlreadyAnswered):
            await app.complete_call(token, "again")
    assert await resume(durable_store_url, effect) == (["sea.png"], calls)


async def test_a_result_for_a_call_that_was_reported_as_unknown_is_refused(durable_store_url: str) -> None:
    token = await kill_with_token(durable_store_url)
    assert await resume(durable_store_url, "once") == ([UNKNOWN_OUTCOME], 0)
    async with App([], durable_store_url, worker=False) as app:
        with pytest.raises(NotWaiting):
            await app.complete_call(token, "sea.png")


async def test_the_token_of_a_killed_attempt_is_valid_for_the_repeated_call(durable_store_url: str) -> None:
    token = await kill_with_token(durable_store_url, "idempotent")
    agent, model = make_agent("idempotent", "async", do_nothing, "done")
    async with App([agent], durable_store_url) as app:
        assert app.store is not None
        while not (await read_calls(app.store)).waits:
            await app.store.wait_for_change(timedelta(seconds=1))
        await app.complete_call(token, "sea.png")
        assert (await app.result("r", through_waits=True)).output == "done"
    assert [each.content for each in model.requests[-1] if isinstance(each, ToolResult)] == ["sea.png"]


class PostingStore(ProbeStore):
    """Gives the result of a call while the resumed run is about to record that there is none."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(store_from_url(url), before=self.give_result)
        self.accepted: bool | None = None
        self._url, self._token = url, token

    async def give_result(self, method: str) -> None:
        if method == "append" and self.accepted is None:
            self.accepted = True
            async with App([], self._url, worker=False) as app:
                await app.complete_call(self._token, "sea.png")


async def test_a_result_that_comes_while_the_run_resumes_counts(durable_store_url: str) -> None:
    token = await kill_with_token(durable_store_url)
    store = PostingStore(durable_store_url, token)
    agent, model = make_agent("once", "async", do_nothing, "done")
    async with App([agent], store) as app:
        assert (await app.result("r", through_waits=True)).output == "done"
    await store.inner.close()
    assert store.accepted
    assert [each.content for each in model.requests[-1] if isinstance(each, ToolResult)] == ["sea.png"]


@pytest.mark.parametrize("found", [Completed("found"), NOT_EXECUTED], ids=repr)
async def test_a_result_that_has_come_needs_no_reconciliation(durable_store_url: str, found: Any) -> None:
    token = await kill_with_token(durable_store_url)
    reconciled: list[str] = []

    async def reconcile(context: Any) -> Any:
        reconciled.append(context.call_id)
        return found

    agent, model = make_agent("once", "async", do_nothing, "done")
    agent = Agent(name="a", model=model, tools=[Tool(render_never, name="render", reconcile=reconcile)])
    async with App([], durable_store_url, worker=False) as app:
        await app.complete_call(token, "sea.png")
    async with App([agent], durable_store_url) as app:
        assert (await app.result("r", through_waits=True)).output == "done"
    assert reconciled == []
    assert [each.content for each in model.requests[-1] if isinstance(each, ToolResult)] == ["sea.png"]


async def render_never() -> Deferred:
    raise AssertionError("the call has its result")


async def test_a_result_is_accepted_only_once_the_store_knows_its_token() -> None:
    held, may_save = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def hold(method: str) -> None:
        if method == "append" and not held.is_set():
            held.set()
            await may_save.wait()

    renderer = Renderer(effect="pure")

    async def complete(token: str, result: Any) -> None:
        assert renderer.app is not None
        completing = asyncio.create_task(renderer.app.complete_call(token, result))
        await held.wait()
        await asyncio.wait([completing], timeout=0.05)
        order.append("completed" if completing.done() else "waits")
        may_save.set()
        await completing

    renderer.complete = complete  # type: ignore[method-assign]
    async with App([renderer.agent], ProbeStore(MemoryStore(), before=hold)) as app:
        renderer.app = app
        assert (await app.run("a", "go", run_id="r", through_waits=True)).output == "done"
    assert (order, renderer.results) == (["waits"], ["sea.png"])
