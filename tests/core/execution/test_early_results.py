"""The result of a call may come before its tool has returned `Deferred`."""

from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Deferred, ToolResult, current_call, tool
from holdfast.checkpoint.store import END
from holdfast.core.agents.calls import Effect
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting


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
