"""Calls that wait: for approvals, answers, times, signals, results and children; and what ends each wait."""

import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.core.errors import RunError
from holdfast.core.json_value import to_json_value
from holdfast.core.run.mail import BUDGET_TOPIC
from holdfast.ids import make_token


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the approval that a call needs. The `approval` function of a tool may return one."""

    reason: str = ""
    #: How long the run waits for the answer. `None`: without limit.
    expires_in: timedelta | None = None
    #: Who may decide: a label that the host checks.
    audience: str = ""


WaitKind = Literal["approval", "question", "signal", "timer", "result", "child", "run"]

#: The kinds whose decision stays on record.
_RECORDED_KINDS: frozenset[WaitKind] = frozenset({"approval", "question", "result"})

#: The kinds that a person has to answer.
PERSON_KINDS = frozenset({"approval", "question"})


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a waiting call, and who gave it. `expire`: there was none in time."""

    kind: Literal["approve", "deny", "value", "expire"]
    #: With `approve`: the arguments to call the tool with instead of the model's.
    arguments: Any = None
    #: With `value`: the result of the call.
    value: Any = None
    #: With `deny`: the reason, for the model. Otherwise a comment for the record.
    comment: str = ""
    by: str = ""
    via: str = ""
    at: datetime | None = None


class Approve(msgspec.Struct, frozen=True, kw_only=True):
    """Let the tool be called, with other arguments if they are given."""

    arguments: dict[str, Any] | None = None
    comment: str = ""

    def to_decision(self, by: str, via: str) -> Decision:
        return Decision(kind="approve", arguments=self.arguments, comment=self.comment, by=by, via=via)


class Deny(msgspec.Struct, frozen=True, kw_only=True):
    """Do not call the tool. The model reads the reason."""

    reason: str = ""

    def to_decision(self, by: str, via: str) -> Decision:
        return Decision(kind="deny", comment=self.reason, by=by, via=via)


class Value(msgspec.Struct, frozen=True):
    """The result of the call."""

    value: Any

    def to_decision(self, by: str, via: str) -> Decision:
        return Decision(kind="value", value=to_json_value(self.value, "the answer"), by=by, via=via)


Answer = Approve | Deny | Value


def make_secret(key: str, run_id: str, step: int) -> str:
    """Return the secret of a completion token: random, with its step and a signature.

    The signature shows that a process which executes the run has made it, before the store knows that the call waits.

    Args:
        key: the worker that executes the run.
    """
    secret = f"{step}.{make_token()}"
    return f"{secret}.{_sign(key, run_id, secret)}"


def read_signed_step(key: str, run_id: str, secret: str) -> int | None:
    """Return the step for which the worker `key` made the secret; `None` if it did not make it."""
    signed, _, signature = secret.rpartition(".")
    if not signed or not secret.isascii() or not hmac.compare_digest(_sign(key, run_id, signed), signature):
        return None
    return int(signed.partition(".")[0])


def _sign(key: str, run_id: str, secret: str) -> str:
    return hmac.new(key.encode(), f"{run_id}~{secret}".encode(errors="replace"), hashlib.sha256).hexdigest()[:32]


def make_result_topic(step: int, call_id: str) -> str:
    """Return the topic of the result of a call whose tool returns `Deferred`. The same in every attempt."""
    return f"answer:result:{step}:{call_id}"


def hash_token(secret: str) -> str:
    """Return what is stored of the secret of a completion token. Empty for no secret."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest() if secret else ""


class CallToken(msgspec.Struct, frozen=True, kw_only=True):
    """A completion token that the tool of a call has asked for. A repeated call may have several; all are valid."""

    call_id: str
    #: The topic of the result.
    topic: str
    #: A hash of the secret. The secret itself is not stored.
    token_hash: str

    @classmethod
    def create(cls, step: int, call_id: str, secret: str) -> "CallToken":
        return cls(call_id=call_id, topic=make_result_topic(step, call_id), token_hash=hash_token(secret))

    def is_of(self, secret: str) -> bool:
        return hmac.compare_digest(self.token_hash, hash_token(secret))


class Deferred(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by a tool whose result arrives later, through `App.complete_call` with the token of the call."""

    reason: str = ""
    #: How long the run waits for the result. `None`: without limit.
    expires_in: timedelta | None = None
    #: Plain data that is shown with the call.
    metadata: Any = None


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits. Stored with its run, and listed by `App.pending`."""

    run_id: str
    call_id: str
    step: int
    tool: str
    kind: WaitKind
    #: As the model gave them.
    arguments: Any = None
    #: With `approval`: the JSON schema of the arguments, if it is known. Edited arguments have to fit.
    schema: dict[str, Any] | None = None
    #: The topic of the mail that answers it, and others whose mail does so too.
    topic: str = ""
    other_topics: tuple[str, ...] = ()
    reason: str = ""
    #: What the tool says about the call, as plain data.
    metadata: Any = None
    asked_at: datetime
    #: When the wait ends without an answer; of a timer, when it is due. `None`: never.
    expires_at: datetime | None = None
    #: Who may decide: a label that the host checks.
    audience: str = ""
    #: With `result`: the holder of a completion token may give the result.
    has_token: bool = False
    #: With `child`: the child runs of the call wait for a time only.
    timed: bool = False
    #: The answer, once the run has read it.
    decision: Decision | None = None
    #: The approval of a call that then waits for something else.
    approval: Decision | None = None

    @property
    def id(self) -> str:
        """Tells this wait apart from all others of its run."""
        return f"{self.step}:{self.kind}:{self.call_id}"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of all mail that ends the wait."""
        return (self.topic, *self.other_topics) if self.topic else ()

    @property
    def needs_answer(self) -> bool:
        """Whether only `App.answer` ends the wait: by a person, or by the code that makes an external call."""
        return self.kind in PERSON_KINDS or (self.kind == "result" and not self.has_token)

    @property
    def is_recorded(self) -> bool:
        """Whether its decision stays on record when the step is finished."""
        return self.kind in _RECORDED_KINDS

    @property
    def recorded_decision(self) -> Decision | None:
        """The decision that stays on record, without the result of the call."""
        decision = self.approval or (self.decision if self.is_recorded else None)
        return None if decision is None else msgspec.structs.replace(decision, value=None)

    @property
    def digest(self) -> str:
        """Names this wait and the arguments of the call: what a person saw is what is answered.

        A later wait has another one, also if the model uses the id and the arguments of the call again.
        """
        return hashlib.sha256(msgspec.json.encode([self.id, self.arguments], order="sorted")).hexdigest()[:16]


class Suspend(RunError):
    """Raised by a tool: its call waits. The tool is not called again; the answer becomes the result of the call.

    What to do: Nothing: loops catch it. A loop of your own lets it pass through `ToolCalls.execute`.
    """

    def __init__(
        self,
        kind: WaitKind,
        *,
        topic: str = "",
        other_topics: tuple[str, ...] = (),
        reason: str = "",
        expires_at: datetime | None = None,
        audience: str = "",
    ) -> None:
        super().__init__(f"the call waits ({reason or kind}), but the loop that has called it lets no run wait")
        self.kind = kind
        self.topic = topic
        self.other_topics = other_topics
        self.reason = reason
        self.expires_at = expires_at
        self.audience = audience


class RunWaiting(RunError):
    """The run waits for a time, a person, a signal or a result. It holds no process, and resumes by itself.

    What to do: Answer the calls of the error (`App.pending`, `holdfast pending`), send the signal, or wait.
    """

    def __init__(self, run_id: str, calls: tuple[WaitingCall, ...]) -> None:
        self.run_id = run_id
        self.calls = calls
        super().__init__(f"run {run_id} waits for {self.reason}")

    @property
    def reason(self) -> str:
        """What the run waits for."""
        return describe_waits(self.calls)

    @property
    def wake_at(self) -> datetime | None:
        """When the run resumes without mail."""
        return min((call.expires_at for call in self.calls if call.expires_at is not None), default=None)

    @property
    def wake_on(self) -> tuple[str, ...]:
        """The topics of mail that resume the run."""
        return tuple(sorted({topic for call in self.calls for topic in call.topics}))

    @property
    def only_for_time(self) -> bool:
        """Whether it waits for times, or for runs that it has started."""
        return all(call.kind in ("timer", "run") or call.timed for call in self.calls)


class RateLimitWait(RunWaiting):
    """The run waits until a limit of its model's provider allows another call. It resumes by itself.

    What to do: Nothing: a worker resumes the run. The limits are those of `App(rate_limits=...)`.
    """

    def __init__(self, run_id: str, model: str, until: datetime) -> None:
        self._model, self._until = model, until
        super().__init__(run_id, ())

    @property
    def reason(self) -> str:
        """What the run waits for."""
        return f"the limits of {self._model or 'its model'} until {self._until:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def wake_at(self) -> datetime | None:
        """When the run resumes without mail."""
        return self._until


class BudgetExhausted(RunWaiting):
    """The run waits until its budget has room: the window has moved, or the limit was raised. It resumes by itself.

    What to do: Nothing, or raise the limit: a worker resumes the run.
    """

    def __init__(self, run_id: str, reason: str, until: datetime | None) -> None:
        self._reason, self._until = reason, until
        super().__init__(run_id, ())

    @property
    def reason(self) -> str:
        """What the run waits for."""
        return self._reason

    @property
    def wake_at(self) -> datetime | None:
        """When the run resumes without mail."""
        return self._until

    @property
    def wake_on(self) -> tuple[str, ...]:
        """The topics of mail that resume the run."""
        return (BUDGET_TOPIC,)

    @property
    def only_for_time(self) -> bool:
        """A caller does not wait for it: that may take days."""
        return False


class OutageWait(RunWaiting):
    """A child run waits until the provider of its model is available again. It resumes with its parent.

    What to do: Nothing: a worker resumes the parent. `Agent(retry=...)` sets how long a call is retried.
    """

    def __init__(self, run_id: str, error: BaseException, until: datetime) -> None:
        self._error, self._until = error, until
        super().__init__(run_id, ())

    @property
    def reason(self) -> str:
        """What the run waits for."""
        return str(self._error)

    @property
    def wake_at(self) -> datetime | None:
        """When the run resumes without mail."""
        return self._until


def describe_decision(decision: Decision) -> str:
    """Describe a decision in one line, such as `approved by ann via slack`."""
    parts = [{"approve": "approved", "deny": "denied", "value": "answered", "expire": "expired"}[decision.kind]]
    if decision.arguments is not None:
        parts.append(f"with {msgspec.json.encode(decision.arguments).decode()}")
    if decision.by:
        parts.append(f"by {decision.by}")
    if decision.via:
        parts.append(f"via {decision.via}")
    return " ".join(parts) + (f": {decision.comment}" if decision.comment else "")


def format_denial(decision: Decision) -> str:
    """Return the text for the model that its call was denied."""
    reason = f": {decision.comment}" if decision.comment else ""
    return f"The call was denied{reason}."


def describe_waits(calls: tuple[WaitingCall, ...]) -> str:
    """Describe in one line what a run waits for."""
    parts = []
    for call in calls:
        match call.kind:
            case "approval":
                parts.append(f"approval of {call.tool} ({call.call_id})")
            case "question":
                parts.append(f"an answer: {call.reason}")
            case "signal":
                parts.append(f"the signal {call.topic.partition(':')[2]}")
            case "timer":
                parts.append(f"the time {call.expires_at:%Y-%m-%d %H:%M:%S} UTC")
            case "result":
                parts.append(f"the result of {call.tool} ({call.call_id})")
            case "child":
                parts.append(f"a child run of {call.tool} ({call.reason})")
            case "run":
                parts.append(f"the end of {call.reason}")
    return ", ".join(parts) or "mail"
