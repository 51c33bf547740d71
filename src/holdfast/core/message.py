"""What a run has used up so far.

The messages of the native loop, and how messages of any loop are stored.

What they hold is plain data, which has no way back to them: so the garbage collector need not look at the histories of
all runs again and again (`gc=False`).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import PayloadError


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens, requests and cost. Adds up; counts on over resumes."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Part of the output tokens, where the provider tells.
    reasoning_tokens: int = 0
    requests: int = 0
    tool_calls: int = 0
    cost_usd: float = 0.0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        if other is NO_USAGE:
            return self
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            requests=self.requests + other.requests,
            tool_calls=self.tool_calls + other.tool_calls,
            # Zero as it is by default, so that it is left out when it is stored.
            cost_usd=(self.cost_usd + other.cost_usd) or NO_USAGE.cost_usd,
        )


NO_USAGE = Usage()
ONE_REQUEST = Usage(requests=1)
ONE_TOOL_CALL = Usage(tool_calls=1)


class System(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """The agent's instructions, as they were when the run began."""

    text: str


class User(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """What a person, or whoever steers the run, says."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model asks for."""

    #: Unique within the run. Results are recorded under it.
    id: str
    name: str
    #: What the model gave, as JSON data. Checked against the tool's signature before the tool is called.
    arguments: Any = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="reply", omit_defaults=True):
    """What the model says. Without tool calls it is the answer."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = NO_USAGE

    def __post_init__(self) -> None:
        # One that is read back equals the one that was stored.
        if isinstance(self.tool_calls, list):
            msgspec.structs.force_setattr(self, "tool_calls", tuple(self.tool_calls))


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool", omit_defaults=True):
    """What became of one tool call."""

    call_id: str
    tool: str
    #: Plain JSON data.
    content: Any = None
    #: The call failed, or was refused; `content` says why.
    error: bool = False


Message = System | User | Reply | ToolResult


class MessageCodec(Protocol):
    """How the messages of one kind of loop are turned into bytes and back."""

    def encode(self, message: Any) -> bytes:
        """One JSON value in UTF-8, without a line break.

        Raises:
            PayloadError: the message cannot be stored without changing it.
        """
        ...

    def decode(self, body: bytes) -> Any:
        """The message again, equal to what was encoded. Imports nothing and runs nothing named in the data."""
        ...


class NativeCodec:
    """Stores the messages above."""

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(Message)

    def encode(self, message: Any) -> bytes:
        try:
            return self._encoder.encode(message)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
            raise PayloadError(f"a {type(message).__name__} message cannot be stored: {exc}") from exc

    def decode(self, body: bytes) -> Any:
        return self._decoder.decode(body)


NATIVE_CODEC = NativeCodec()
