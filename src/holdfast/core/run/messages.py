"""Usage, the messages of the native loop, and the codec that stores the messages of any loop.

Messages hold plain data without cycles, so the garbage collector does not track them (`gc=False`). Otherwise
it would scan the transcripts of all runs repeatedly; `holdfast.stores.sqlite.writer` has the figure.
"""

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import InvalidReply, PayloadError
from holdfast.core.json_value import to_json_value


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Tokens, requests and cost, summed across resumes."""

    input_tokens: int = 0
    output_tokens: int = 0
    #: Part of the output tokens, if the provider reports them.
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
            # The default object if zero, so that `omit_defaults` leaves it out.
            cost_usd=(self.cost_usd + other.cost_usd) or NO_USAGE.cost_usd,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """Return the usage since `other`, an earlier usage of the same run."""
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            requests=self.requests - other.requests,
            tool_calls=self.tool_calls - other.tool_calls,
            cost_usd=(self.cost_usd - other.cost_usd) or NO_USAGE.cost_usd,
        )


NO_USAGE = Usage()
ONE_REQUEST = Usage(requests=1)
ONE_TOOL_CALL = Usage(tool_calls=1)


class System(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="system"):
    """The agent's instructions when the run began."""

    text: str


class User(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="user", omit_defaults=True):
    """The prompt, or a steered message."""

    text: str
    #: The content parts of a prompt that is not text alone, as the caller gave them; `text` is a summary of them.
    content: Sequence[Any] = ()

    def __post_init__(self) -> None:
        # A stored message decodes to one that is equal.
        if isinstance(self.content, list):
            msgspec.structs.force_setattr(self, "content", tuple(self.content))


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A tool call that the model, or the code of a workflow, asks for."""

    #: Unique within the run. Results are recorded under it.
    id: str
    name: str
    #: JSON data. Checked against the tool's signature before the tool is called.
    arguments: Any = {}
    #: For readers of a workflow's steps: the effect of the tool, and whether a failure of the workflow undoes the call.
    effect: str = ""
    can_undo: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="reply", omit_defaults=True):
    """The model's reply. Without tool calls it is the answer."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage = NO_USAGE
    #: The model that has replied, as the provider names it. Empty: unknown.
    model: str = ""

    def __post_init__(self) -> None:
        # A stored reply decodes to one that is equal.
        if isinstance(self.tool_calls, list):
            msgspec.structs.force_setattr(self, "tool_calls", tuple(self.tool_calls))


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="role", tag="tool", omit_defaults=True):
    """The result of one tool call."""

    call_id: str
    tool: str
    #: Plain JSON data.
    content: Any = None
    #: The call failed, or was refused; `content` says why.
    error: bool = False
    #: holdfast itself has computed the content in a workflow: a time, a run id, the winner of a race, the form of an
    #: error. Redaction changes only the texts of an error in it.
    computed: bool = False


Message = System | User | Reply | ToolResult


class MessageCodec(Protocol):
    """Encodes and decodes the messages of one kind of loop."""

    def encode(self, message: Any) -> bytes:
        """Return one JSON value in UTF-8, without a line break.

        Raises:
            PayloadError: the message cannot be stored without changing it.
        """
        ...

    def decode(self, body: bytes) -> Any:
        """Return a message equal to the encoded one. Imports and runs nothing that the data names."""
        ...


class JsonCodec:
    """Encodes the messages of a loop as JSON."""

    def __init__(self, message_type: Any) -> None:
        """Decode messages of this type, which may be a union."""
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(message_type)

    def encode(self, message: Any) -> bytes:
        try:
            return self._encoder.encode(message)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
            raise PayloadError(f"a {type(message).__name__} message cannot be stored: {exc}") from exc

    def decode(self, body: bytes) -> Any:
        return self._decoder.decode(body)


class NativeCodec(JsonCodec):
    """Encodes the messages of the native loop."""


NATIVE_CODEC = NativeCodec(Message)


#: Stands in place of arguments that no store can keep, with the reason. No parameter of a tool has this name.
UNREADABLE_ARGUMENTS = "unreadable arguments"

#: What a model may report of one call, at most.
_MAX_COUNT, _MAX_COST_USD = 10**12, 1e9

_HALF_PAIRS = re.compile("[\ud800-\udfff]")


def validate_reply(reply: Any) -> Reply:
    """Return `reply` as a store would return it, the arguments of its calls lowered to plain data.

    Half a surrogate pair becomes U+FFFD. Arguments that cannot be stored are replaced with the reason: the loop reports
    it to the model.

    Raises:
        InvalidReply: it is not a `Reply`, a field has the wrong type, two of its calls share an id, or its usage is
            negative or absurd.
    """
    if not isinstance(reply, Reply):
        raise InvalidReply(f"the model returned {type(reply).__name__}: return a holdfast Reply")
    if not isinstance(reply.tool_calls, tuple):
        raise InvalidReply("the tool calls of a reply have to be a list of ToolCall")
    calls = tuple(map(_validate_call, reply.tool_calls))
    if len(calls) > 1 and len({call.id for call in calls}) < len(calls):
        raise InvalidReply(f"two tool calls of one reply share an id: {[call.id for call in calls]}")
    own = Reply(text=reply.text, tool_calls=calls, usage=reply.usage, model=reply.model)
    if _is_json_safe(own):
        return own
    _check_usage(own.usage)
    return _round_trip(own)


def _validate_call(call: Any) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise InvalidReply("the tool calls of a reply have to be a list of ToolCall")
    if not call.id or not call.name:
        raise InvalidReply("every tool call of a reply has to have an id and a name")
    try:
        arguments = to_json_value(call.arguments, "the arguments")
    except PayloadError as exc:
        arguments = {UNREADABLE_ARGUMENTS: replace_half_pairs(str(exc))}
    return ToolCall(id=call.id, name=call.name, arguments=arguments)


def replace_half_pairs(text: Any) -> Any:
    """Return a text that UTF-8 can encode: half a surrogate pair becomes U+FFFD. Other values are unchanged."""
    return _HALF_PAIRS.sub("\ufffd", text) if isinstance(text, str) else text


def _is_json_safe(reply: Reply) -> bool:
    """Whether a store returns it unchanged for certain. Others are encoded and decoded to find out."""
    usage = reply.usage
    if usage is not NO_USAGE:
        if type(usage) is not Usage or type(usage.cost_usd) is not float:
            return False
        counts = (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.requests, usage.tool_calls)
        if set(map(type, counts)) != {int}:
            return False
        if min(counts) < 0 or max(counts) > _MAX_COUNT or not 0 <= usage.cost_usd <= _MAX_COST_USD:
            return False
    for call in reply.tool_calls:
        if type(call.id) is not str or not call.id.isascii() or type(call.name) is not str or not call.name.isascii():
            return False
    text, model = reply.text, reply.model
    return type(text) is str and text.isascii() and type(model) is str and model.isascii()


def _check_usage(usage: Any) -> None:
    """Refuse numbers that would make budgets and bounds meaningless. Wrong types are found elsewhere."""
    values = msgspec.structs.asdict(usage) if isinstance(usage, Usage) else {}
    for name, value in values.items():
        most = _MAX_COST_USD if name == "cost_usd" else _MAX_COUNT
        if isinstance(value, int | float) and not 0 <= value <= most:
            raise InvalidReply(f"the usage of a reply has {name}={value!r}: give a number from 0 to {most:g}")


def _round_trip(reply: Reply) -> Reply:
    calls = tuple(
        ToolCall(id=replace_half_pairs(call.id), name=replace_half_pairs(call.name), arguments=call.arguments)
        for call in reply.tool_calls
    )
    text, model = replace_half_pairs(reply.text), replace_half_pairs(reply.model)
    reply = Reply(text=text, tool_calls=calls, usage=reply.usage, model=model)
    try:
        stored: Reply = NATIVE_CODEC.decode(NATIVE_CODEC.encode(reply))
    except msgspec.ValidationError as exc:
        raise InvalidReply(f"the model returned a Reply with a field of the wrong type: {exc}") from exc
    if stored != reply:
        raise InvalidReply("the model returned a Reply with a field of the wrong type: text and model have to be a str")
    return stored
