"""The seam between the executor and whatever drives a conversation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.core.message import MessageCodec

if TYPE_CHECKING:
    from holdfast.core.execution.steps import StepContext


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
    #: What the tool gave, or what the model was told instead.
    content: Any = None
    error: bool = False


class Loop(Protocol):
    """Drives one conversation to its output, step by step. One object serves any number of runs.

    The contract with the executor, which the native loop keeps like any other:

    - `drive.state.history` is the conversation. If it is empty, begin with `drive.seed(messages)`, which makes the
      run durable before the first model call. If it is not, go on from it with no new input.
    - `drive.begin_step()` before each model call; it may raise to stop the run, and returns what was steered in, which
      goes into the history before anything else is awaited.
    - After a reply that asks for tools: `drive.intend(...)`, then each call through `drive.call(...)`.
    - `drive.end_step()` once the reply and all its tool results are in the history.
    """

    @property
    def codec(self) -> MessageCodec:
        """How this loop's messages are stored."""
        ...

    async def run(self, context: "StepContext") -> Any:
        """Go on to the end of the conversation and return its output."""
        ...

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        """The tool calls that the last reply asks for; none if the conversation does not end with one."""
        ...

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        """The tool calls that have a result, in the order in which they were asked for.

        Args:
            history: a conversation, or a part of one that begins with a question or a reply.
            results: recorded results that are not in the history yet, by call id.
        """
        ...

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        """A tool result in the form that this loop records: what somebody else says became of a call."""
        ...

    def dump_output(self, output: Any) -> Any:
        """The output as plain data, for the store.

        Raises:
            PayloadError: it cannot be stored without changing it.
        """
        ...

    def load_output(self, stored: Any) -> Any:
        """The output again."""
        ...
