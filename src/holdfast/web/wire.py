"""The bodies of requests and responses, shared by the API and its client. Needs no web framework."""

from datetime import datetime
from typing import Any, Literal, cast, get_type_hints

import msgspec

from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN
from holdfast.core.run.info import RequestOptions
from holdfast.core.run.messages import Usage
from holdfast.core.run.turns import TurnStatus
from holdfast.core.run.waiting import Answer, Approve, Deny, Value, WaitingCall
from holdfast.runtime.operations.conversations import When
from holdfast.runtime.operations.verdicts import Verdict
from holdfast.runtime.reading.transcript import CallRecord

#: The media type of errors (RFC 9457).
PROBLEM_JSON = "application/problem+json"
#: The beginning of the `type` of a problem. The name of an error class of holdfast follows.
PROBLEM_TYPE = "urn:holdfast:"


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request. A field with a typing error in its name is refused, not ignored."""


class RunRequest(_Body, frozen=True, kw_only=True):
    """A run to be queued."""

    agent: str
    #: The prompt: text, or content parts that the agent accepts.
    input: str | list[Any]
    #: Structured data for the agent's code.
    inputs: dict[str, Any] | None = None
    #: Workers leave the run alone until then.
    not_before: datetime | None = None

    @property
    def options(self) -> RequestOptions:
        """The options of the run that the request has."""
        given = {name: getattr(self, name, None) for name in _RUN_OPTIONS}
        return cast("RequestOptions", {name: value for name, value in given.items() if value is not None})


_RUN_OPTIONS = get_type_hints(RequestOptions)

#: The body of such a request: each option of a new run is a field.
RunRequestBody = msgspec.defstruct(
    "RunRequest",
    [(name, hint | None, None) for name, hint in _RUN_OPTIONS.items()],
    bases=(RunRequest,),
    namespace={"__doc__": RunRequest.__doc__},
    module=__name__,
    kw_only=True,
    omit_defaults=True,
)


class PendingCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that wait for a person, or for the result of an external call, oldest run first."""

    calls: tuple[CallRecord, ...]


class MessageRequest(_Body, frozen=True, kw_only=True):
    """A message to a run."""

    text: str
    #: Sending with the same id again changes nothing.
    id: str | None = None


class SignalRequest(_Body, frozen=True, kw_only=True):
    """A signal to a run: a call of `wait_for` with this name returns the payload."""

    name: str
    payload: Any = None
    #: Sending with the same id again changes nothing.
    id: str | None = None


class _AnswerBody(_Body, frozen=True, kw_only=True, tag_field="kind"):
    """The answer to a call that waits."""

    call_id: str
    #: Digest of the call that the person saw: an answer for another one is refused.
    digest: str | None = None


class ApproveRequest(_AnswerBody, frozen=True, kw_only=True, tag="approve"):
    """Let the tool be called, with other arguments if they are given."""

    arguments: dict[str, Any] | None = None
    comment: str = ""

    def to_answer(self) -> Answer:
        return Approve(arguments=self.arguments, comment=self.comment)


class DenyRequest(_AnswerBody, frozen=True, kw_only=True, tag="deny"):
    """Do not call the tool. The model reads the reason."""

    reason: str = ""

    def to_answer(self) -> Answer:
        return Deny(reason=self.reason)


class ValueRequest(_AnswerBody, frozen=True, kw_only=True, tag="value"):
    """The result of the call, as the person gave it."""

    value: Any

    def to_answer(self) -> Answer:
        return Value(self.value)


AnswerRequest = ApproveRequest | DenyRequest | ValueRequest


class _ResolutionBody(_Body, frozen=True, kw_only=True, tag_field="kind"):
    """What a person has found out about a call in doubt."""

    call_id: str


class ResultResolution(_ResolutionBody, frozen=True, kw_only=True, tag="result"):
    """The call happened, with this result."""

    value: Any


class NotExecutedResolution(_ResolutionBody, frozen=True, kw_only=True, tag="not_executed"):
    """The call did not happen. It is made now."""

    @property
    def value(self) -> Any:
        return NOT_EXECUTED


class UnknownResolution(_ResolutionBody, frozen=True, kw_only=True, tag="unknown"):
    """The model reads that the outcome of the call is unknown."""

    @property
    def value(self) -> Any:
        return UNKNOWN


class UnparkRequest(_Body, frozen=True, kw_only=True):
    """Releases a parked run. For a call in doubt without a resolution, the outcome is unknown."""

    resolutions: tuple[ResultResolution | NotExecutedResolution | UnknownResolution, ...] = ()


class ForkRequest(_Body, frozen=True, kw_only=True):
    """A new run that starts with the state of another one after a step."""

    at_step: int
    #: Replaces the prompt, if `at_step` is 1, or the messages that the run got before this step, which is run again.
    edited: str | list[Any] | None = None
    #: Replace results of the step's calls, by call id.
    results: dict[str, Any] | None = None
    #: The id of the new run. A random one, if it is not given.
    run_id: str | None = None


class PickRequest(_Body, frozen=True, kw_only=True):
    """Which of several results a person has chosen."""

    #: The id of a model, if the run is a fan-out, else the id of a run. Empty: none.
    result: str


class PickResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has chosen among the results of a fan-out, of a run and its forks, or of the children of a run."""

    #: The newest choice.
    pick: Verdict | None


class TurnRequest(_Body, frozen=True, kw_only=True):
    """A message to a conversation."""

    #: Text, or content parts that the agent accepts.
    content: str | list[Any]
    #: Sending with the same id again changes nothing.
    id: str | None = None
    #: What the message does that arrives during a turn.
    when: When = "queue"


class ConversationForkRequest(_Body, frozen=True, kw_only=True):
    """A new conversation that begins as another one."""

    #: The number of the last turn that the new conversation has.
    at_turn: int
    #: Replaces the message of that turn, which is answered again.
    edited: str | None = None
    key: str


class RunReference(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a request was accepted for."""

    run_id: str


class Unfinished(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run, or the turn of a conversation, that has not ended."""

    run_id: str
    turn_id: str = ""
    #: The calls that wait for a person, a signal or a result, without the hashes of their tokens.
    calls: tuple[WaitingCall, ...] = ()


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run that is done. The output is plain data."""

    run_id: str
    output: Any
    usage: Usage
    steps: int


class TurnReference(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a conversation that was accepted. `run_id` is that of the conversation."""

    run_id: str
    turn_id: str


class TurnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    turn_id: str
    number: int
    status: TurnStatus | Literal["running"]
    #: The beginning of the message.
    prompt: str
    #: The output, once the turn is done, as plain data.
    output: Any
    #: Why the turn failed or was interrupted.
    error: str
    usage: Usage
    steps: int
    began_at: datetime
    ended_at: datetime | None


class ConversationHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation and its turns, oldest first. Its events are those of the run with this id."""

    run_id: str
    turns: tuple[TurnSummary, ...]


class MailReference(msgspec.Struct, frozen=True, kw_only=True):
    """The message or signal that was accepted."""

    run_id: str
    id: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request was refused (RFC 9457)."""

    #: `urn:holdfast:` and the name of the error, such as `urn:holdfast:RunNotFound`.
    type: str
    title: str
    status: int
    detail: str
