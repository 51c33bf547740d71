"""Agents whose every tool call has crash points in it, and whose model and tools leave notes."""

import copy
import functools
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.run.agent import Agent, AgentSource, Model, Phase
from holdfast.run.call import _CURRENT, CallContext, current_call
from holdfast.run.effects import DID_NOT_HAPPEN, Happened, Reconcile, Verdict
from holdfast.run.info import RunInfo
from holdfast.run.loop import Loop
from holdfast.run.message import NATIVE_CODEC, Message, Reply
from holdfast.run.tool import Tool, ToolSchema
from holdfast.testing.crash.foreign import ForeignLoops
from holdfast.testing.crash.notes import Asked, Began, Notebook, Reconciled, Replied, Returned, Started
from holdfast.testing.crash.trap import Trap


def conversation_key(run_id: str, messages: Sequence[bytes]) -> str:
    """Stands for a model call: the run, and the conversation that the model is shown."""
    digest = hashlib.sha256(run_id.encode())
    for message in messages:
        digest.update(message + b"\n")
    return digest.hexdigest()[:32]


class Instruments:
    """Wraps agents, their models and their tools. What they do stays the same."""

    def __init__(self, trap: Trap, notebook: Notebook, foreign: ForeignLoops) -> None:
        self._trap, self._notebook, self._foreign = trap, notebook, foreign

    def source(self, inner: AgentSource, started_by: CallContext | None = None) -> AgentSource:
        """The agent as a source that instruments it, for whoever starts it."""
        self._foreign.learn(inner)
        return _Source(inner, self, self._notebook, started_by)

    def agent(self, agent: Agent, run_id: str) -> Agent:
        """The agent, for one run."""
        if agent.loop is not None:
            return agent  # its model and its tools are its loop's own: ports tell what they do
        return replace(
            agent,
            model=self._model(agent.model, run_id, 0),
            tools=[self.tool(each) for each in agent.tools],
            phases=[self._phase(each, agent, run_id, number) for number, each in enumerate(agent.phases)],
        )

    def _phase(self, phase: Phase, agent: Agent, run_id: str, number: int) -> Phase:
        wrapped = replace(phase, model=self._model(phase.model or agent.model, run_id, number))
        if phase.tools is None:
            return wrapped
        return replace(wrapped, tools=[each if isinstance(each, str) else self.tool(each) for each in phase.tools])

    def _model(self, model: Model | None, run_id: str, phase: int) -> Model | None:
        return None if model is None else _NotedModel(model, run_id, phase, self._notebook)

    def tool(self, given: Tool | Callable[..., Any]) -> Tool:
        tool = given if isinstance(given, Tool) else Tool(given)
        wrapped = copy.copy(tool)
        wrapped.function = self._function(tool)
        wrapped.reconcile = self._reconcile(tool.reconcile)
        return wrapped

    def _function(self, tool: Tool) -> Callable[..., Any]:
        @functools.wraps(tool.function)
        async def noted(**arguments: Any) -> Any:
            with self._call(tool):
                return await tool.function(**arguments)

        @functools.wraps(tool.function)
        def noted_in_thread(**arguments: Any) -> Any:
            with self._call(tool):
                return tool.function(**arguments)

        return noted_in_thread if tool.in_thread else noted

    @contextmanager
    def _call(self, tool: Tool) -> Iterator[None]:
        context = current_call()
        self.start(context.run_id, context.step, context.call_id, tool.name, tool.effect.value)
        token = _CURRENT.set(msgspec.structs.replace(context, start_child=self._start_child(context)))
        try:
            yield
        except Exception:  # the tool's own: a crash may come before that is recorded, too
            self.end(context.run_id, context.step, context.call_id, tool.name, returned=False)
            raise
        finally:
            _CURRENT.reset(token)
        self.end(context.run_id, context.step, context.call_id, tool.name, returned=True)

    def start(self, run_id: str, step: int, call_id: str, tool: str, effect: str) -> None:
        """The body of a tool begins: note it, and perhaps crash."""
        self._notebook.write(Started(run_id=run_id, step=step, call_id=call_id, tool=tool, effect=effect))
        self._trap.reach(f"at the start of {tool} {call_id} in step {step} of {run_id}")

    def end(self, run_id: str, step: int, call_id: str, tool: str, *, returned: bool) -> None:
        """The body of a tool has ended: note it, and perhaps crash before that is recorded."""
        if returned:
            self._notebook.write(Returned(run_id=run_id, step=step, call_id=call_id))
        self._trap.reach(f"at the end of {tool} {call_id} in step {step} of {run_id}")

    def _start_child(self, context: CallContext) -> Callable[[Any, str, str | None], Awaitable[Any]] | None:
        start = context.start_child
        if start is None:
            return None

        async def started(agent: AgentSource, prompt: str, key: str | None) -> Any:
            return await start(self.source(agent, context), prompt, key)

        return started

    def _reconcile(self, reconcile: Reconcile | None) -> Reconcile | None:
        if reconcile is None:
            return None

        async def noted(context: CallContext) -> Happened | Verdict:
            point = f"the reconciling of {context.tool} {context.call_id} in step {context.step} of {context.run_id}"
            self._trap.reach(f"before {point}")
            verdict = await reconcile(context)
            note = Reconciled(
                run_id=context.run_id,
                step=context.step,
                call_id=context.call_id,
                happened=isinstance(verdict, Happened),
                did_not_happen=verdict is DID_NOT_HAPPEN,
            )
            self._notebook.write(note)
            self._trap.reach(f"after {point}")
            return verdict

        return noted


class _NotedModel:
    """A model that notes what it is shown, each message once, and what it says."""

    def __init__(self, model: Model, run_id: str, phase: int, notebook: Notebook) -> None:
        self._model, self._run_id, self._phase, self._notebook = model, run_id, phase, notebook
        self._shown: list[bytes] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        bodies = [NATIVE_CODEC.encode(message) for message in messages]
        start = len(self._shown) if bodies[: len(self._shown)] == self._shown else 0
        self._shown = bodies
        key = conversation_key(self._run_id, bodies)
        self._notebook.write(
            Asked(run_id=self._run_id, key=key, phase=self._phase, start=start, messages=bodies[start:])
        )
        reply = await self._model(messages, tools)
        self._notebook.write(Replied(run_id=self._run_id, phase=self._phase, message=NATIVE_CODEC.encode(reply)))
        return reply


class _Source:
    """An agent that is instrumented when it is built."""

    def __init__(
        self, inner: AgentSource, instruments: Instruments, notebook: Notebook, started_by: CallContext | None
    ) -> None:
        self._inner, self._instruments, self._notebook = inner, instruments, notebook
        self._started_by = started_by
        self.name = inner.name
        self.agent_id: str = getattr(inner, "agent_id", "")
        self.model_tier: str = getattr(inner, "model_tier", "")
        self.loop: Loop | None = getattr(inner, "loop", None)

    async def build(self, info: RunInfo) -> Agent:
        above = self._started_by
        self._notebook.write(
            Began(
                run_id=info.run_id,
                parent_run_id=above.run_id if above else None,
                call_id=above.call_id if above else None,
            )
        )
        return self._instruments.agent(await self._inner.build(info), info.run_id)
