"""The native loop: ask the model, call the tools it asks for, repeat."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.run.agent import AgentSource
from holdfast.run.drive import Drive
from holdfast.run.effects import Effect, InDoubt, Reconcile
from holdfast.run.errors import (
    InvalidReply,
    NotKnownHere,
    PayloadError,
    RepeatedToolCalls,
    RunParked,
    ToolFailed,
    described,
)
from holdfast.run.live import LiveRun
from holdfast.run.loop import FinishedCall, Loop, PendingCall
from holdfast.run.message import NATIVE_CODEC, MessageCodec, Reply, System, ToolCall, ToolResult, User
from holdfast.run.payload import plain
from holdfast.run.repeats import Repeats
from holdfast.run.tool import Tool
from holdfast.run.usage import NO_USAGE, ONE_REQUEST, Usage


class NativeLoop:
    """Drives agents made of a model callable and tools."""

    @property
    def codec(self) -> MessageCodec:
        return NATIVE_CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        last = history[-1] if history else None
        if not isinstance(last, Reply):
            return ()
        return [PendingCall(call_id=call.id, tool=call.name, arguments=call.arguments) for call in last.tool_calls]

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        finished: list[FinishedCall] = []
        asked: Sequence[ToolCall] = ()
        found: dict[str, Any] = {}
        for message in [*history, None]:
            if isinstance(message, ToolResult):
                found[message.call_id] = message
            elif isinstance(message, Reply) or message is None:
                # The ids of calls are unique within a reply, and used again in later ones.
                found = found if message is not None else {**(results or {}), **found}
                finished += [_finished(call, found[call.id]) for call in asked if call.id in found]
                asked, found = (message.tool_calls if message is not None else ()), {}
        return finished

    def told(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return ToolResult(call_id=call.call_id, tool=call.tool, content=plain(content, "the answer"), error=error)

    def dump_output(self, output: Any) -> Any:
        return plain(output, "the output")

    def load_output(self, stored: Any) -> Any:
        return stored

    async def drive(self, drive: Drive) -> Any:
        """The text of the first reply that asks for no tools."""
        if not drive.state.history:
            system = [System(drive.profile.instructions)] if drive.profile.instructions else []
            await drive.seed([*system, User(drive.prompt)])
        conversation = _Conversation(drive)
        reply = conversation.unfinished()
        resumed = reply is not None
        while True:
            if reply is None:
                reply = await conversation.ask()
            if not reply.tool_calls:
                if not (resumed and conversation.is_counted):
                    await drive.end_step()
                if not drive.has_steering:
                    return reply.text
            else:
                drive.state.history.extend(await conversation.call_tools(reply.tool_calls, resumed=resumed))
                await drive.end_step()
            reply, resumed = None, False


class _Conversation:
    """One conversation under way."""

    def __init__(self, drive: Drive) -> None:
        self._drive, self._live = drive, drive.live
        self._history = drive.state.history
        self._tools = drive.profile.tools
        self._schemas = tuple(tool.schema for tool in self._tools.values())
        self._max_repeats = drive.profile.max_repeats
        self._repeats = Repeats(_asked(message) for message in self._history if isinstance(message, Reply))

    def unfinished(self) -> Reply | None:
        """The reply with which a saved conversation ends: its tools are not all called, or it is the answer."""
        last = self._history[-1]
        return last if isinstance(last, Reply) else None

    @property
    def is_counted(self) -> bool:
        """Whether the step of every reply was finished: a saved answer may have been stopped just before.

        Where compaction took replies out of the history it counts as finished, rather than be counted twice.
        """
        return sum(isinstance(message, Reply) for message in self._history) <= self._drive.state.phase_iteration

    async def ask(self) -> Reply:
        """The model's next reply, already in the history."""
        drive = self._drive
        steered = await drive.begin_step(self._compact if drive.profile.compact is not None else None)
        if steered:
            self._history.extend([User(text) for text in steered])
        assert drive.profile.model is not None, "Agent refuses to be made without a model"
        reply = _checked(await drive.profile.model(self._history, self._schemas))
        self._history.append(reply)
        drive.used(_with_a_request(reply.usage))
        if self._live.is_watched:
            await drive.said(reply.text)
        if self._repeats.count(_asked(reply)) > self._max_repeats:
            raise RepeatedToolCalls(drive.run_id, reply.tool_calls[0].name, self._max_repeats)
        return reply

    async def _compact(self) -> None:
        assert self._drive.profile.compact is not None
        shorter = await self._drive.profile.compact(self._history)
        if shorter is not None:
            self._history.rewrite(shorter)

    async def call_tools(self, calls: Sequence[ToolCall], *, resumed: bool) -> list[ToolResult]:
        """The results of all calls, in their order; the calls run side by side."""
        if resumed:
            self._check_removed(calls)
        requests = list(map(self._request, calls))
        await self._drive.intend(requests, resumed=resumed)
        if len(requests) == 1:
            return [await self._drive.call(requests[0])]
        tasks = [asyncio.create_task(self._drive.call(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except Exception as exc:
            if self._live.left_for is None:
                self._live.failing = exc
            raise
        finally:
            for task in tasks:
                task.cancel()
            # A sibling that is ended here must be over before the run is settled.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check_removed(self, calls: Sequence[ToolCall]) -> None:
        """A saved reply may ask for a tool that a deploy has removed: that is not the model's mistake."""
        missing = [
            call.name for call in calls if call.name not in self._tools and call.id not in self._drive.state.results
        ]
        policy = self._drive.profile.removed_tools
        if missing and policy == "leave":
            raise NotKnownHere(f"run {self._drive.run_id} was about to call {missing}, which this process lacks")
        if missing and policy == "park":
            raise RunParked("removed tool", f"the run was about to call {missing}, which its agent no longer has")

    def _request(self, call: ToolCall) -> "_Call":
        tool = self._tools.get(call.name)
        if tool is None:
            return _Call(call, f"There is no tool {call.name!r}. Known tools: {', '.join(self._tools) or 'none'}.")
        try:
            arguments = tool.check(call.arguments)
        except ValueError as exc:
            return _Call(call, f"The arguments do not fit: {exc}. The tool was not called.")
        return _ToolCall(call, tool, arguments, self._live)


class _Call:
    """One call of a reply, for `Drive.call`. This kind is refused: it gives the model a text instead."""

    __slots__ = ("_refusal", "arguments", "call_id", "effect", "in_doubt", "reconcile", "tool")

    def __init__(self, call: ToolCall, refusal: str = "") -> None:
        self.call_id, self.tool, self.arguments = call.id, call.name, call.arguments
        self.effect = Effect.PURE
        self.reconcile: Reconcile | None = None
        self.in_doubt: InDoubt = "tell"
        self._refusal = refusal

    async def execute(self) -> ToolResult:
        return self.tell(self._refusal)

    def tell(self, text: str) -> ToolResult:
        return ToolResult(call_id=self.call_id, tool=self.tool, content=text, error=True)

    def found(self, value: Any) -> ToolResult:
        try:
            content = plain(value, f"what reconcile of {self.tool} found")
        except PayloadError as exc:
            return self.tell(f"The call has taken effect, but its result is lost: {exc}")
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content)

    def failed(self, result: Any) -> bool:
        return isinstance(result, ToolResult) and result.error


class _ToolCall(_Call):
    """A call of a tool, with arguments that fit."""

    __slots__ = ("_checked", "_live", "_tool")

    def __init__(self, call: ToolCall, tool: Tool, arguments: dict[str, Any], live: LiveRun) -> None:
        self.call_id, self.tool, self.arguments = call.id, call.name, call.arguments
        self.effect, self.reconcile, self.in_doubt = tool.effect, tool.reconcile, tool.in_doubt
        self._tool, self._checked, self._live, self._refusal = tool, arguments, live, ""

    async def execute(self) -> ToolResult:
        tool, live = self._tool, self._live
        try:
            given = await (live.outlast(tool.call(self._checked)) if tool.in_thread else tool.function(**self._checked))
            content = plain(given, f"the result of {tool.name}")
        except (Exception, asyncio.CancelledError) as exc:  # the user's code may raise anything: the model is told
            if live.is_left_by(exc):
                raise  # the tool parks the run, or says that the host shuts down
            cancelled = isinstance(exc, asyncio.CancelledError)
            if cancelled:
                await asyncio.sleep(0)  # who cancels all tasks may stop the run only now
            # What a call that is stopped half-way raises is not its outcome. One in a thread is not stopped half-way.
            # The task cannot tell: a TaskGroup that failed leaves it as if it were cancelled, up to Python 3.12.
            if live.ended_by is not None and (cancelled or not tool.in_thread):
                raise
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            return self.tell(described(exc))
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content)


def _finished(call: ToolCall, result: ToolResult) -> FinishedCall:
    return FinishedCall(
        call_id=call.id, tool=call.name, arguments=call.arguments, content=result.content, error=result.error
    )


def _checked(reply: Any) -> Reply:
    """`reply` as a store would give it back, the arguments of its calls lowered to plain data.

    Raises:
        InvalidReply: it is something else, or its tool calls cannot be told apart.
        PayloadError: it holds something that would come back changed.
    """
    if not isinstance(reply, Reply):
        raise InvalidReply(f"the model returned {type(reply).__name__}: return a holdfast Reply")
    if not isinstance(reply.tool_calls, tuple):
        raise InvalidReply("the tool calls of a reply have to be a list of ToolCall")
    calls = tuple(map(_checked_call, reply.tool_calls))
    if len(calls) > 1 and len({call.id for call in calls}) < len(calls):
        raise InvalidReply(f"two tool calls of one reply share an id: {[call.id for call in calls]}")
    own = Reply(text=reply.text, tool_calls=calls, usage=reply.usage)
    return own if _is_ordinary(own) else _read_back(own)


def _checked_call(call: Any) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise InvalidReply("the tool calls of a reply have to be a list of ToolCall")
    if not call.id or not call.name:
        raise InvalidReply("every tool call of a reply has to have an id and a name")
    arguments = plain(call.arguments, f"the arguments of {call.name!r}")
    return ToolCall(id=call.id, name=call.name, arguments=arguments)


def _is_ordinary(reply: Reply) -> bool:
    """Whether a look is enough to see that it will be read back as it is: what is most common is not read back."""
    usage = reply.usage
    if usage is not NO_USAGE:
        if type(usage) is not Usage or type(usage.cost_usd) is not float or not math.isfinite(usage.cost_usd):
            return False
        counts = (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.requests, usage.tool_calls)
        if not all(type(count) is int for count in counts):
            return False
    for call in reply.tool_calls:
        if type(call.id) is not str or not call.id.isascii() or type(call.name) is not str or not call.name.isascii():
            return False
    return type(reply.text) is str and reply.text.isascii()


def _read_back(reply: Reply) -> Reply:
    try:
        stored = NATIVE_CODEC.decode(NATIVE_CODEC.encode(reply))
    except msgspec.ValidationError as exc:
        raise InvalidReply(f"the model returned a Reply with a field of the wrong type: {exc}") from exc
    if stored != reply:
        raise InvalidReply("the model returned a Reply with a field of the wrong type: text has to be a str")
    assert isinstance(stored, Reply)
    return stored


def _with_a_request(usage: Usage) -> Usage:
    """A model that does not count its requests has made one."""
    if usage is NO_USAGE:
        return ONE_REQUEST
    return usage if usage.requests > 0 else usage + ONE_REQUEST


def _asked(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reply.tool_calls]


NATIVE_LOOP = NativeLoop()


def loop_of(source: AgentSource) -> Loop:
    """What drives the runs of this agent."""
    loop: Loop | None = getattr(source, "loop", None)
    return loop or NATIVE_LOOP
