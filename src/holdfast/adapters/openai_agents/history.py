"""The run's history beside the SDK's own list of items, which handoffs may rewrite."""

from collections.abc import Sequence
from typing import Any

from agents import ModelResponse

from holdfast.adapters.openai_agents.message_codec import (
    Final,
    Input,
    SDKReply,
    ToolOutput,
    list_call_items,
    make_input_items,
    make_response,
    to_input_item,
    to_input_items,
)
from holdfast.core.errors import RepeatedToolCalls
from holdfast.core.execution.native_loop import RepeatCounter
from holdfast.core.execution.step import StepContext
from holdfast.core.run.state import RunState


class SDKHistory:
    """Appends what the SDK adds to its list of items to the history of the run.

    The model is sent `items`: the SDK's list, and what holdfast added or removed, such as messages to the run.
    """

    def __init__(self, context: StepContext, *, answered: bool) -> None:
        """Read the history.

        Args:
            answered: it ends with an answer, after which the conversation continues.
        """
        self._context, self._history = context, context.state.history
        in_turn = self._history[self._history.turn_start :]
        replies = [message for message in in_turn if isinstance(message, SDKReply)]
        self._repeats = RepeatCounter(map(_list_signatures, replies))
        #: Results that an earlier process has found to be the output, by call id.
        self.final_outputs: dict[str, ToolOutput] = {}
        place = None if answered else self._find_open_reply()
        #: The reply that ends the history: a call has no result, or it is the answer.
        self.open_reply: SDKReply | None = None if place is None else self._history[place]
        #: Whether the step of every reply was finished. If compaction removed replies, it counts as finished.
        self.is_last_step_counted = len(replies) <= context.state.phase_steps
        #: Whether the results of the first reply to the prompt are recorded.
        self.has_first_results = len(replies) > (self.open_reply is not None)
        self.items: list[Any] = to_input_items(self._history[:place])
        #: The SDK's list when it was seen last, and the response since then.
        self._sdk_items: list[Any] | None = None
        self._last_response: ModelResponse | None = None

    def _find_open_reply(self) -> int | None:
        """Return the place of the reply with which the conversation continues."""
        last = self._history[-1] if self._history else None
        if isinstance(last, SDKReply):
            return len(self._history) - 1
        if not isinstance(last, Final):
            return None
        place = max(index for index, message in enumerate(self._history) if isinstance(message, SDKReply))
        outputs = [message for message in self._history[place:] if isinstance(message, ToolOutput)]
        self.final_outputs = {output.call_id: output for output in outputs}
        return place

    @property
    def active_agent(self) -> str | None:
        """The agent that the conversation continues with; `None`: the first one."""
        if self.open_reply is not None:
            return self.open_reply.agent
        name: str | None = (self._context.state.loop_data or {}).get("agent")
        return name

    def set_active_agent(self, name: str) -> None:
        """Record the agent that asks for the next reply. The next save contains it."""
        self._context.state.loop_data = {"agent": name}

    def add_reply(self, reply: SDKReply, response: ModelResponse) -> None:
        """Record a reply of the model."""
        self._history.append(reply)
        self._last_response = response

    def check_repeats(self, reply: SDKReply) -> None:
        """Count a reply.

        Raises:
            RepeatedToolCalls: it asks for the same calls too often in a row.
        """
        bound = self._context.profile.max_repeats
        if self._repeats.count(_list_signatures(reply)) > bound:
            raise RepeatedToolCalls(self._context.run_id, list_call_items(reply.output)[0]["name"], bound)

    def replay_reply(self, reply: SDKReply) -> ModelResponse:
        """Return the response of a reply that is in the history."""
        response = make_response(reply)
        self._last_response, self.open_reply = response, None
        return response

    def read_sdk_items(self, items: Sequence[Any]) -> None:
        """Record what the SDK has added since the last time: results of the last reply, or another list."""
        before, self._sdk_items = self._sdk_items, list(items)
        response, self._last_response = self._last_response, None
        if before is None:
            return  # the input that the SDK was given
        if self._sdk_items[: len(before)] != before:  # a handoff has rewritten it
            self.items = list(self._sdk_items)
            self._history.rewrite([Input(items=self.items)])
            return
        added = self._sdk_items[len(before) :]
        self.items.extend(added)
        if response is not None:
            self._add_results(added, list(response.to_input_items()))
        elif added:
            self._history.append(Input(items=added))

    def _add_results(self, added: list[Any], own: list[Any]) -> None:
        """Append the items after those of the reply. A recorded result is appended as the object that is recorded."""
        if added[: len(own)] != own:
            self._history.append(Input(items=added, includes_reply=True))
            return
        results = self._context.state.results
        loose: list[Any] = []
        for item in added[len(own) :]:
            output = results.get(item.get("call_id", "")) if item.get("type") == "function_call_output" else None
            if isinstance(output, ToolOutput) and to_input_item(output) == item:
                self._append_loose(loose)
                self._history.append(output)
                loose = []
            else:
                loose.append(item)
        self._append_loose(loose)

    def _append_loose(self, items: list[Any]) -> None:
        if items:
            self._history.append(Input(items=items))

    def add_final_results(self) -> None:
        """Record that the results of the last reply are the output."""
        self._history.extend(self._context.state.results.values())
        self._history.append(Final())

    def add_messages(self, contents: Sequence[str | list[Any]]) -> None:
        """Record messages that were sent to the run."""
        added = [item for content in contents for item in make_input_items(content)]
        self._history.append(Input(items=added))
        self.items.extend(added)

    async def compact(self) -> None:
        """Replace the conversation by a shorter one, if the agent says so."""
        compact = self._context.profile.compact
        shorter = await compact(list(self.items)) if compact is not None else None
        if shorter is not None:
            self.items = list(shorter)
            self._history.rewrite([Input(items=self.items)])


def forget_active_agent(state: RunState) -> None:
    """Begin with the first agent."""
    state.loop_data = None


def _list_signatures(reply: SDKReply) -> list[tuple[str, Any]]:
    return [(call["name"], call["arguments"]) for call in list_call_items(reply.output)]
