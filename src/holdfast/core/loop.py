"""The protocol of a loop, which executes conversations."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.core.run.messages import MessageCodec
from holdfast.core.run.result import OutputT_co

if TYPE_CHECKING:
    from holdfast.core.execution.step import StepContext


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a reply asks for."""

    call_id: str
    tool: str
    arguments: Any = None


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call with its result."""

    call_id: str
    tool: str
    arguments: Any = None
    #: The tool's result, or the text that the model got instead.
    content: Any = None
    error: bool = False


class Loop(Protocol[OutputT_co]):
    """Executes conversations step by step. One object serves any number of runs.

    A loop that accepts content parts in a prompt also is a `PromptEncoder`.

    The contract with the executor:

    - `context.state.history` is the conversation. If `context.begins`, add the prompt with `context.start(messages)`,
      which makes it durable before the first model call; in later turns of a conversation the history is not empty
      then. Otherwise continue from the history with no new input.
    - Before each model call: `context.begin_step()`. It may raise to stop the run. It returns steered messages, which
      go into the history before anything else is awaited.
    - Around each model call: `await context.model_calls.enter(NAME)` before it, and after it
      `context.model_calls.on_error(...)` or `on_reply(MODEL)`, then `context.add_usage(...)`.
    - After a reply that asks for tools: `context.tool_calls.announce(...)`, then `context.tool_calls.execute(...)` for
      each, with a `CallRequest` of the loop's own class. Further calls of the step may be announced meanwhile.
    - Once the reply and all its tool results are in the history: `context.end_step()`.
    """

    @property
    def name(self) -> str:
        """Stored with each run as `RunInfo.loop`: readers choose by it how to show the messages."""
        ...

    @property
    def codec(self) -> MessageCodec:
        """Encodes this loop's messages."""
        ...

    async def run(self, context: "StepContext") -> OutputT_co:
        """Execute the conversation to its end and return its output."""
        ...

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        """Return the tool calls of the last reply; none if the conversation does not end with a reply."""
        ...

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        """Return the tool calls that have a result, in the order in which the model asked for them.

        Args:
            history: a conversation, or a part of one that begins with a prompt or a reply.
            results: recorded results that are not in the history yet, by call id.
        """
        ...

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        """Return a tool result in the form that this loop records: a person's resolution of a call."""
        ...

    def make_message(self, content: str | list[Any]) -> Any:
        """Return a message to the run in the form in which this loop records those of `StepContext.begin_step`.

        Args:
            content: text, or content parts as `PromptEncoder.dump_prompt` makes them.
        """
        ...

    def dump_output(self, output: Any) -> Any:
        """Return the output as plain data, for the store.

        Raises:
            PayloadError: it cannot be stored without changing it.
        """
        ...

    def load_output(self, stored: Any) -> Any:
        """Return the output from its stored form."""
        ...
