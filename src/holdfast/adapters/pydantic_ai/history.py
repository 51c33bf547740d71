"""The run's history beside pydantic-ai's own list of messages, and the counters that survive a resume."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage

from holdfast.adapters.pydantic_ai.message_codec import load_prompt
from holdfast.adapters.pydantic_ai.tool_results import FINAL, has_mark, make_marked_request
from holdfast.core.errors import DefinitionError, RepeatedToolCalls
from holdfast.core.execution.native_loop import RepeatCounter
from holdfast.core.execution.step import StepContext
from holdfast.core.run.messages import Usage
from holdfast.core.run.state import RunState

_USAGE_ADAPTER = TypeAdapter(RunUsage)


class Counters:
    """The adapter's state of one run. `write_to` puts changes into the run's state; the next save stores them."""

    def __init__(self, state: RunState) -> None:
        kept: dict[str, Any] = state.loop_data or {}
        #: pydantic-ai's own count, which pydantic-ai updates in place.
        self.usage: RunUsage = _USAGE_ADAPTER.validate_python(kept["usage"]) if "usage" in kept else RunUsage()
        #: Calls that waited for an answer or for other calls, and were started.
        self.started: list[str] = list(kept.get("begun", ()))
        #: Calls of the open reply for which there is no tool.
        self.unknown_calls: list[str] = list(kept.get("unknown", ()))
        self.output_retries: int = kept.get("output_retries", 0)
        self.tool_retries: dict[str, int] = dict(kept.get("tool_retries", {}))
        self._last_counts = _read_counts(self.usage)

    def write_to(self, state: RunState) -> None:
        """Put this into the run's state as new objects: a save compares them by identity."""
        kept: dict[str, Any] = {"usage": {name: value for name, value in vars(self.usage).items() if value}}
        if self.usage.cost is not None:
            kept["usage"]["cost"] = str(self.usage.cost)
        if self.started:
            kept["begun"] = list(self.started)
        if self.unknown_calls:
            kept["unknown"] = list(self.unknown_calls)
        if self.output_retries:
            kept["output_retries"] = self.output_retries
        if self.tool_retries:
            kept["tool_retries"] = dict(self.tool_retries)
        state.loop_data = kept

    def start_phase(self) -> None:
        """Reset all but the usage for the next phase."""
        self.end_batch()
        self.output_retries, self.tool_retries = 0, {}

    def start_turn(self) -> None:
        """Reset everything for the next turn of a conversation: pydantic-ai's limits hold for a turn."""
        self.start_phase()
        self.usage = RunUsage()
        self._last_counts = _read_counts(self.usage)

    def end_batch(self) -> None:
        """Forget the calls of a reply that is answered."""
        self.started, self.unknown_calls = [], []

    def record_retries(self, manager: ToolManager[Any], output_retries: int) -> None:
        """Record the retries of tools and output, which pydantic-ai counts per process."""
        before = manager.ctx.retries if manager.ctx is not None else {}
        self.tool_retries = {tool: count for tool, count in before.items() if tool not in manager.succeeded_tools}
        for tool in manager.failed_tools:
            self.tool_retries[tool] = before.get(tool, 0) + 1
        self.output_retries = output_retries

    def restore_tool_retries(self, manager: ToolManager[Any] | None) -> None:
        """Give pydantic-ai the recorded retries, once. It continues counting from there."""
        if self.tool_retries and manager is not None and manager.ctx is not None and not manager.ctx.retries:
            manager.ctx.retries.update(self.tool_retries)

    def take_usage(self) -> Usage | None:
        """Return the usage since the last count, if any. Tool calls are counted by `StepContext`."""
        before, now = self._last_counts, _read_counts(self.usage)
        if now == before:
            return None
        self._last_counts = now
        return Usage(
            input_tokens=now[0] - before[0],
            output_tokens=now[1] - before[1],
            reasoning_tokens=now[2] - before[2],
            requests=now[3] - before[3],
            cost_usd=float((now[4] or 0) - (before[4] or 0)),
        )


def _read_counts(usage: RunUsage) -> tuple[int, int, int, int, Decimal | None]:
    return usage.input_tokens, usage.output_tokens, usage.output_reasoning_tokens, usage.requests, usage.cost


class PydanticAIHistory:
    """Appends new parts of pydantic-ai's messages to the run's history, before history processors run."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._history = context, context.state.history
        #: The parts since the last reply that are in the history, by `id()`. Held so that no id is used again.
        self._recorded_parts: dict[int, ModelRequestPart] = {}
        in_turn = self._history[self._history.turn_start :]
        self._repeats = RepeatCounter(
            _get_call_signatures(message) for message in in_turn if isinstance(message, ModelResponse)
        )
        self._answers_start = _find_answers_start(self._history)
        answers: list[ModelRequest] = self._history[self._answers_start :]
        #: An earlier process has answered the last reply, which holds the run's output.
        self.has_output = self.has_started and bool(answers) and has_mark(answers[-1], FINAL)
        if not self.has_output:
            self.mark_recorded(part for message in answers for part in message.parts)

    @property
    def has_started(self) -> bool:
        """Whether the prompt is in the history."""
        return not self._context.begins

    def find_run_id(self) -> str | None:
        """Return pydantic-ai's id of the run that has asked for the last reply."""
        last = self._answers_start - 1
        return self._history[last].run_id if last >= self._history.turn_start else None

    @property
    def ends_with_reply(self) -> bool:
        """Whether the last reply is not answered, or is the answer. A reply suspended by its provider is neither."""
        reply = self._history[self._answers_start - 1] if self._answers_start else None
        unanswered = self.has_output or self._answers_start == len(self._history)
        return isinstance(reply, ModelResponse) and unanswered and reply.state != "suspended"

    @property
    def messages(self) -> list[ModelMessage]:
        """The messages that pydantic-ai continues from, without the answers to a reply that holds the output."""
        return self._history[: self._answers_start] if self.has_output else list(self._history)

    def find_prompt(self) -> str | Sequence[UserContent]:
        """Return the prompt of the turn, or of the run."""
        for message in self._history[self._history.turn_start :]:
            for part in message.parts:
                if isinstance(part, UserPromptPart):
                    return part.content
        return ""

    def final_results(self) -> dict[str, ModelRequest]:
        """Return the recorded results beside the output, by call id."""
        if not self.has_output:
            return {}
        answers = [message for message in self._history[self._answers_start :] if not has_mark(message, FINAL)]
        return {part.tool_call_id: each for each in answers for part in each.parts if isinstance(part, ToolReturnPart)}

    async def start(self, messages: Sequence[ModelMessage], request: ModelRequest) -> None:
        """Record the request, and before it the messages of a new run. Returns when they are durable."""
        self.mark_recorded(get_open_parts([*messages, request]))
        await self._context.start([request] if self._history else [*messages, request])

    def add_request(self, parts: Sequence[ModelRequestPart]) -> bool:
        """Record parts that are about to be sent to the model. Return whether any of them is new."""
        new = [part for part in parts if id(part) not in self._recorded_parts]
        if new:
            self._history.append(ModelRequest(parts=new))
            self.mark_recorded(new)
        return bool(new)

    def add_reply(self, reply: ModelResponse) -> None:
        """Record a reply of the model.

        Raises:
            RepeatedToolCalls: it asks for the same calls too often in a row.
        """
        self._history.append(reply)
        self._recorded_parts.clear()
        bound = self._context.profile.max_repeats
        if self._repeats.count(_get_call_signatures(reply)) > bound:
            raise RepeatedToolCalls(self._context.run_id, reply.tool_calls[0].tool_name, bound)

    def add_results(self, messages: Sequence[ModelRequest], parts: Sequence[ModelRequestPart], *, final: bool) -> None:
        """Record `messages`, which answer all calls of the last reply; `parts` are pydantic-ai's form of them."""
        if self.has_output:
            if final:
                return  # it is in the history already
            self._history.rewrite(self._history[: self._answers_start])  # the output is not accepted any more
        self.has_output = False
        self._history.extend(messages)
        self.mark_recorded(parts)
        if final and messages:
            self._history.append(make_marked_request([], FINAL))

    async def compact(self) -> tuple[list[ModelMessage], ModelRequest] | None:
        """Return a shorter conversation and the request that is about to be sent; `None` to keep both.

        Raises:
            DefinitionError: the shorter conversation does not end with a request.
        """
        compact = self._context.profile.compact
        shorter = await compact(repair_messages(list(self._history), repair_last_response=False)) if compact else None
        if shorter is None:
            return None
        *before, request = shorter or [None]
        if not isinstance(request, ModelRequest):
            raise DefinitionError("compact has to return messages that end with the request that is about to be sent")
        self._history.rewrite(shorter)
        self.mark_recorded(get_open_parts(shorter))
        return before, request

    def mark_recorded(self, parts: Iterable[ModelRequestPart]) -> None:
        """Mark parts that are in the history."""
        self._recorded_parts.update((id(part), part) for part in parts)


def make_steering_parts(messages: Iterable[str | list[Any]]) -> list[ModelRequestPart]:
    return [UserPromptPart(load_prompt(content)) for content in messages]


def get_open_parts(messages: Sequence[ModelMessage]) -> list[ModelRequestPart]:
    """Return the parts since the last reply."""
    return [part for message in messages[_find_answers_start(messages) :] for part in message.parts]  # type: ignore[misc]


def _find_answers_start(messages: Sequence[Any]) -> int:
    """Return the index after the last reply."""
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], ModelResponse):
            return index + 1
    return 0


def _get_call_signatures(reply: ModelResponse) -> list[tuple[str, Any]]:
    return [(call.tool_name, call.args) for call in reply.tool_calls]
