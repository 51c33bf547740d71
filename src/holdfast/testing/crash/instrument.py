"""Instrumentation of the tested App: agents, tools, models and ports that log events and pass crash points.

Each wrapper delegates to the user's own object, if there is one.
"""

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.core.agents.agent import Agent, AgentSource, Model, Phase
from holdfast.core.agents.calls import NOT_EXECUTED, Completed, Reconcile, Reconciliation
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import _CURRENT_CALL, ChildStarter, ToolContext, current_call
from holdfast.core.execution.calling.background import StartedRuns
from holdfast.core.loop import Loop
from holdfast.core.observer import AttemptControl, CallEnded, ObservedEvent, Observer, ObserverFactory
from holdfast.core.ports import Budget, RunListener, ToolProvider
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply
from holdfast.core.run.run_events import Event, ReplyAdded, ToolCalled, ToolReturned
from holdfast.core.run.state import RunState
from holdfast.db.tables import Tables, UsesTables
from holdfast.testing.crash.injection import CrashInjector
from holdfast.testing.crash.recording import (
    EventLog,
    ModelReplyEvent,
    ModelRequestEvent,
    OtherLoopReplyEvent,
    OtherLoops,
    OutputEvent,
    ReconciledEvent,
    RunStartedEvent,
    ToolEffectEvent,
    ToolReturnedEvent,
    ToolStartedEvent,
    UsageEvent,
    has_phase_agents,
)


def hash_conversation(run_id: str, messages: Sequence[bytes]) -> str:
    """Identify a model call by the run and the conversation that the model receives."""
    digest = hashlib.sha256(run_id.encode())
    for message in messages:
        digest.update(message + b"\n")
    return digest.hexdigest()[:32]


class Instrumentation:
    """Wraps agents, their models and their tools without changing what they do."""

    def __init__(self, injector: CrashInjector, event_log: EventLog, other_loops: OtherLoops) -> None:
        self._injector, self._event_log, self._other_loops = injector, event_log, other_loops

    def wrap_source(self, inner: AgentSource, parent_call: ToolContext | None = None) -> AgentSource:
        """Return a source that instruments the agent when it is built."""
        self._other_loops.register(inner)
        return _InstrumentedSource(inner, self, self._event_log, parent_call)

    def wrap_agent(self, agent: Agent, run_id: str) -> Agent:
        """Return the agent instrumented for one run."""
        if agent.loop is not None or has_phase_agents(agent):
            return agent  # its loop calls the model and the tools itself; the ports log them
        return replace(
            agent,
            model=self._wrap_model(agent.model, run_id, 0),
            tools=[self.wrap_tool(tool) for tool in agent.tools],
            phases=[self._wrap_phase(phase, agent, run_id, number) for number, phase in enumerate(agent.phases)],
        )

    def _wrap_phase(self, phase: Phase, agent: Agent, run_id: str, number: int) -> Phase:
        wrapped = replace(phase, model=self._wrap_model(phase.model or agent.model, run_id, number))
        if phase.tools is None:
            return wrapped
        return replace(wrapped, tools=[tool if isinstance(tool, str) else self.wrap_tool(tool) for tool in phase.tools])

    def _wrap_model(self, model: Model | None, run_id: str, phase: int) -> Model | None:
        return None if model is None else _RecordingModel(model, run_id, phase, self._event_log)

    def wrap_tool(self, given: Tool | Callable[..., Any]) -> Tool:
        tool = given if isinstance(given, Tool) else Tool(given)
        wrapped = copy.copy(tool)
        wrapped.function = self._wrap_function(tool)
        wrapped.policy = replace(tool.policy, reconcile=self._wrap_reconcile(tool.policy.reconcile))
        return wrapped

    def _wrap_function(self, tool: Tool) -> Callable[..., Any]:
        @functools.wraps(tool.function)
        async def recorded(**arguments: Any) -> Any:
            with self._record_call(tool):
                return await tool.function(**arguments)

        @functools.wraps(tool.function)
        def recorded_in_thread(**arguments: Any) -> Any:
            with self._record_call(tool):
                return tool.function(**arguments)

        return recorded_in_thread if tool.in_thread else recorded

    @contextmanager
    def _record_call(self, tool: Tool) -> Iterator[None]:
        context = current_call()
        self.record_tool_start(context.run_id, context.step, context.call_id, tool.name, tool.effect.value)
        token = _CURRENT_CALL.set(msgspec.structs.replace(context, children=self._wrap_children(context)))
        try:
            yield
        except Exception:  # raised by the tool: also here a crash may come before the result is recorded
            self.record_tool_end(context.run_id, context.step, context.call_id, tool.name, returned=False)
            raise
        finally:
            _CURRENT_CALL.reset(token)
        self.record_tool_end(context.run_id, context.step, context.call_id, tool.name, returned=True)

    def record_tool_start(self, run_id: str, step: int, call_id: str, tool: str, effect: str) -> None:
        """Log the start of a tool's body, then pass a crash point."""
        self._event_log.write(ToolStartedEvent(run_id=run_id, step=step, call_id=call_id, tool=tool, effect=effect))
        self._injector.reach(f"at the start of {tool} {call_id} in step {step} of {run_id}")

    def record_tool_end(self, run_id: str, step: int, call_id: str, tool: str, *, returned: bool) -> None:
        """Log the return of a tool's body, then pass a crash point before the result is recorded."""
        if returned:
            self._event_log.write(ToolReturnedEvent(run_id=run_id, step=step, call_id=call_id))
        self._injector.reach(f"at the end of {tool} {call_id} in step {step} of {run_id}")

    def _wrap_children(self, context: ToolContext) -> ChildStarter | None:
        return None if context.children is None else _InstrumentedChildren(context.children, self, context)

    def _wrap_reconcile(self, reconcile: Reconcile | None) -> Reconcile | None:
        if reconcile is None:
            return None

        async def recorded(context: ToolContext) -> Completed | Reconciliation:
            point = f"the reconciling of {context.tool} {context.call_id} in step {context.step} of {context.run_id}"
            self._injector.reach(f"before {point}")
            outcome = await reconcile(context)
            event = ReconciledEvent(
                run_id=context.run_id,
                step=context.step,
                call_id=context.call_id,
                completed=isinstance(outcome, Completed),
                not_executed=outcome is NOT_EXECUTED,
            )
            self._event_log.write(event)
            self._injector.reach(f"after {point}")
            return outcome

        return recorded


class _RecordingModel:
    """Logs the messages that a model receives, each once, and its replies."""

    def __init__(self, model: Model, run_id: str, phase: int, event_log: EventLog) -> None:
        self._model, self._run_id, self._phase, self._event_log = model, run_id, phase, event_log
        self._last_messages: list[bytes] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        bodies = [NATIVE_CODEC.encode(message) for message in messages]
        start = len(self._last_messages) if bodies[: len(self._last_messages)] == self._last_messages else 0
        self._last_messages = bodies
        key = hash_conversation(self._run_id, bodies)
        self._event_log.write(
            ModelRequestEvent(run_id=self._run_id, key=key, phase=self._phase, start=start, messages=bodies[start:])
        )
        reply = await self._model(messages, tools)
        self._event_log.write(
            ModelReplyEvent(run_id=self._run_id, phase=self._phase, message=NATIVE_CODEC.encode(reply))
        )
        return reply


class _InstrumentedChildren:
    """Starts children whose agents are instrumented."""

    def __init__(self, inner: ChildStarter, instrumentation: Instrumentation, parent_call: ToolContext) -> None:
        self._inner, self._instrumentation, self._parent_call = inner, instrumentation, parent_call

    async def start(
        self, agent: AgentSource | str, prompt: str, key: str | None, inputs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(agent, str):  # the App has it, instrumented
            return await self._inner.start(agent, prompt, key, inputs)
        source = self._instrumentation.wrap_source(agent, self._parent_call)
        return await self._inner.start(source, prompt, key, inputs)

    def begin_try(self) -> None:
        self._inner.begin_try()

    @property
    def background(self) -> StartedRuns:
        return self._inner.background

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: str,
        key: str | None,
        inputs: Mapping[str, Any] | None = None,
        *,
        detached: bool = False,
    ) -> RunInfo:
        return await self._inner.submit(agent, prompt, key, inputs, detached=detached)


class _InstrumentedSource:
    """An agent source that instruments the agent it builds."""

    def __init__(
        self, inner: AgentSource, instrumentation: Instrumentation, event_log: EventLog, parent_call: ToolContext | None
    ) -> None:
        self._inner, self._instrumentation, self._event_log = inner, instrumentation, event_log
        self._parent_call = parent_call
        self.name = inner.name
        details = AgentDetails.from_source(inner)
        self.loop, self.agent_id, self.model_tier = details.loop, details.agent_id, details.model_tier

    async def build(self, info: RunInfo) -> Agent:
        parent = self._parent_call
        self._event_log.write(
            RunStartedEvent(
                run_id=info.run_id,
                parent_run_id=parent.run_id if parent else None,
                call_id=parent.call_id if parent else None,
            )
        )
        return self._instrumentation.wrap_agent(await self._inner.build(info), info.run_id)


class RecordingListener:
    """Logs the output of the tested run. For another loop, logs its replies and passes crash points in its tools."""

    def __init__(
        self,
        run_id: str,
        loop: Loop,
        event_log: EventLog,
        instrumentation: Instrumentation,
        other_loops: OtherLoops,
        inner: RunListener | None,
    ) -> None:
        self._run_id, self._loop, self._event_log, self._inner = run_id, loop, event_log, inner
        self._instrumentation, self._other_loops = instrumentation, other_loops

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if self._inner is not None:
            await self._inner.on_event(info, event)
        if info.agent_name not in self._other_loops:
            return
        run_id, step = info.run_id, event.step
        match event:
            case ToolCalled():
                self._instrumentation.record_tool_start(run_id, step, event.call_id, event.tool, "")
            case ToolReturned():
                returned = not event.error
                self._instrumentation.record_tool_end(run_id, step, event.call_id, event.tool, returned=returned)
            case ReplyAdded():
                self._event_log.write(OtherLoopReplyEvent(run_id=run_id, step=step))

    async def on_output(self, info: RunInfo, output: Any) -> None:
        if info.run_id == self._run_id:
            self._event_log.write(OutputEvent(output=self._loop.dump_output(output)))
        if self._inner is not None:
            await self._inner.on_output(info, output)

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        if self._inner is not None:
            await self._inner.on_error(info, error)


class TableUserProxy:
    """Opens and closes the port that a subclass wraps, as an App does."""

    def __init__(self, inner: object) -> None:
        self._user = inner if isinstance(inner, UsesTables) else None
        self.tables = self._user.tables if self._user is not None else None

    async def open(self, tables: Tables) -> None:
        if self._user is not None:
            await self._user.open(tables)

    async def close(self) -> None:
        if self._user is not None:
            await self._user.close()


class RecordingAudit(TableUserProxy):
    """Logs the effects of tools that another loop called."""

    def __init__(self, event_log: EventLog, other_loops: OtherLoops, inner: ObserverFactory | None) -> None:
        super().__init__(inner)
        self._event_log, self._other_loops, self._inner = event_log, other_loops, inner

    def begin(self, attempt: AttemptControl) -> "RecordingObserver":
        inner = self._inner.begin(attempt) if self._inner is not None else None
        return RecordingObserver(self._event_log if attempt.info.agent_name in self._other_loops else None, inner)


class RecordingObserver:
    """The audit of one attempt."""

    def __init__(self, event_log: EventLog | None, inner: Observer | None) -> None:
        self._event_log, self._inner = event_log, inner
        self._inner_kinds: frozenset[type] = frozenset() if inner is None else inner.kinds

    @property
    def kinds(self) -> frozenset[type]:
        return self._inner_kinds | {CallEnded}

    def observe(self, event: ObservedEvent) -> None:
        if isinstance(event, CallEnded) and event.outcome in ("done", "error") and self._event_log is not None:
            call, effect = event.call, event.effect.value
            self._event_log.write(ToolEffectEvent(run_id=call.run_id, call_id=call.call_id, effect=effect))
        if self._inner is not None and type(event) in self._inner_kinds:
            self._inner.observe(event)


class RecordingBudget(TableUserProxy):
    """Logs the usage of runs."""

    def __init__(self, event_log: EventLog, inner: Budget | None) -> None:
        super().__init__(inner)
        self._event_log, self._inner = event_log, inner

    async def check(self, info: RunInfo, state: RunState) -> None:
        if self._inner is not None:
            await self._inner.check(info, state)

    async def commit(self, info: RunInfo, state: RunState) -> None:
        self._event_log.write(
            UsageEvent(run_id=info.run_id, steps=state.steps, own=state.own_usage, children=state.child_usage)
        )
        if self._inner is not None:
            await self._inner.commit(info, state)


class InstrumentedToolProvider(TableUserProxy):
    """Instruments the tools of another provider."""

    def __init__(self, inner: ToolProvider, instrumentation: Instrumentation) -> None:
        super().__init__(inner)
        self._inner, self._instrumentation = inner, instrumentation

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        return [self._instrumentation.wrap_tool(tool) for tool in await self._inner.tools(info)]
