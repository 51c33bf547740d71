"""Approvals, streams, forks and conversations."""

from contextlib import aclosing
from typing import Any, ClassVar

import pytest

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.core.agents.calls import Effect
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import RunEvent, TextDelta
from holdfast.core.run.waiting import Approve, Deny, RunWaiting
from holdfast.testing.adapter_suite.script import (
    AgentScript,
    CallLog,
    ScriptedCall,
    get_answer,
    import_driver,
    tests_feature,
)


class _Texts:
    """A listener that keeps the text of replies as it arrives."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        if isinstance(event, TextDelta):
            self.texts.append(event.text)

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


class CaseTests:
    """The features that adapters share, apart from surviving a kill."""

    driver: ClassVar[str]

    def _make_bank(self, log: CallLog) -> Any:
        steps = ([ScriptedCall("c1", "pay", "Lyon"), ScriptedCall("c2", "look", "Lyon")], "done")
        tools = [log.make_tool("pay", needs_approval=True), log.make_tool("look", Effect.PURE)]
        script = AgentScript(steps=steps, tools=tools, on_request=log.on_request)
        return import_driver(self.driver).make_agent(script)

    @tests_feature("approvals")
    @pytest.mark.parametrize("approved", [True, False])
    async def test_a_call_waits_for_a_person_and_its_siblings_do_not(self, approved: bool) -> None:
        log = CallLog()
        async with App([self._make_bank(log)], "memory:") as app:
            with pytest.raises(RunWaiting) as raised:
                await app.run("scripted", "go", run_id="r")
            [waiting] = raised.value.calls
            assert (waiting.call_id, waiting.tool, waiting.arguments) == ("c1", "pay", {"city": "Lyon"})
            assert await app.pending() == [waiting]
            assert log.calls == ["look Lyon"]
            await app.answer("r", "c1", Approve() if approved else Deny(reason="too much"))
            assert get_answer(self.driver, await app.result("r")) == "done"
        assert log.calls == (["look Lyon", "pay Lyon"] if approved else ["look Lyon"])
        assert log.requests == [0, 1]

    @tests_feature("streams")
    async def test_the_text_of_a_reply_is_shown_as_it_arrives(self) -> None:
        listener = _Texts()
        agent = import_driver(self.driver).make_agent(AgentScript(steps=["one two three"], stream=True))
        async with App([agent], "memory:", listener=listener) as app:
            result = await app.run(agent, "go", run_id="r")
            async with aclosing(app.events("r")) as events:
                replies = [event async for event in events if event.type == "reply"]
        assert "".join(listener.texts).split() == get_answer(self.driver, result).split() == ["one", "two", "three"]
        assert len(listener.texts) >= 3
        assert len(replies) == 1

    @tests_feature("forks")
    async def test_a_fork_continues_after_an_edited_result(self) -> None:
        log = CallLog()
        steps = ([ScriptedCall("c1", "look", "Lyon"), ScriptedCall("c2", "look", "Nice")], "done")
        script = AgentScript(steps=steps, tools=[log.make_tool("look")], on_request=log.on_request)
        agent = import_driver(self.driver).make_agent(script)
        async with App([agent], "memory:") as app:
            result = await app.run(agent, "go", run_id="r")
            edited = await app.result(await self._fork_results(app, {"c1": "rain"}))
            added = await app.result(await app.fork("r", result.steps + 1, edited="And then?"))
        finished = get_loop(agent).finished_calls(edited.messages)
        assert [(call.call_id, call.content) for call in finished] == [("c1", "rain"), ("c2", "look Nice: ok")]
        assert (edited.steps, edited.usage) == (result.steps, result.usage)
        assert len(added.messages) > len(result.messages)
        assert sorted(log.calls) == ["look Lyon", "look Nice"]
        assert log.requests == [0, 1, 1, 1]

    async def _fork_results(self, app: App, results: dict[str, Any]) -> str:
        """Fork at the step with these results: a graph has its calls in one step and their results in the next."""
        try:
            return await app.fork("r", 1, results=results)
        except CheckpointError:
            return await app.fork("r", 2, results=results)

    @tests_feature("conversations")
    async def test_each_message_is_answered_with_the_history_before_it(self) -> None:
        log = CallLog()
        steps = ([ScriptedCall("c1", "look", "Lyon")], "first")
        script = AgentScript(steps=steps, tools=[log.make_tool("look", Effect.PURE)], on_request=log.on_request)
        async with App([import_driver(self.driver).make_agent(script)], "memory:") as app:
            conversation = app.conversation("scripted", "ann")
            assert get_answer(self.driver, await conversation.send("one")) == "first"
            # The call of the first turn is in the history, so the model does not ask for it again.
            assert get_answer(self.driver, await conversation.send("two")) == "first"
        assert log.calls == ["look Lyon"]
        assert log.requests == [0, 1, 1]
