"""Turns of a conversation: the mail that begins one, its beginning and its end as a journal keeps them."""

import hashlib
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.core.json_value import JsonValue
from holdfast.core.run.mail import MESSAGE_TOPIC, Mail
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.waiting import RunWaiting

if TYPE_CHECKING:
    from holdfast.core.run.state import RunState

#: The topic of a message that begins a turn when the turns before it have ended.
TURN_TOPIC = "turn"
#: The topic of a message that ends the current turn at its next step, and begins the next one.
INTERRUPT_TOPIC = "turn:interrupt"
#: The topic of the request to end the conversation after the turns that are queued.
CLOSE_TOPIC = "turn:close"

#: The topics of messages. One of `MESSAGE_TOPIC` joins the current turn, and begins one if there is none.
INPUT_TOPICS = (TURN_TOPIC, INTERRUPT_TOPIC, MESSAGE_TOPIC)
#: The topics that resume a conversation between two turns.
IDLE_TOPICS = (*INPUT_TOPICS, CLOSE_TOPIC)

#: Characters of a message that a turn keeps beside the history.
PROMPT_LENGTH = 200

TurnStatus = Literal["done", "failed", "interrupted"]


_SAFE = re.compile(r"[A-Za-z0-9._-]{1,80}")


def make_conversation_id(agent_name: str, key: str) -> str:
    """Return the run id of the conversation with this key. No two conversations share one.

    Names and keys of letters, digits, `.`, `_` and `-` are readable in it. Others are shortened, and a digest tells
    them apart.
    """
    if _SAFE.fullmatch(agent_name) and _SAFE.fullmatch(key):
        return f"chat:{agent_name}:{key}"
    digest = hashlib.sha256(msgspec.json.encode([agent_name, key])).hexdigest()[:32]
    short_name, short_key = (re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:40] for text in (agent_name, key))
    return f"chat:{short_name}:{short_key}:{digest}"


class Totals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a run has used at one moment."""

    steps: int = 0
    usage: Usage = NO_USAGE
    elapsed: timedelta = timedelta(0)

    @classmethod
    def from_state(cls, state: "RunState") -> "Totals":
        return cls(steps=state.steps, usage=state.usage, elapsed=state.elapsed)


NO_TOTALS = Totals()


class TurnInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beginning of a turn. Its messages follow in the journal."""

    #: The id of the message that began it.
    turn_id: str
    #: Counts up from 1.
    number: int
    #: The beginning of the message, as text.
    prompt: str = ""
    #: Digest of the message: the same id with other content is refused.
    digest: str = ""
    at: datetime
    #: The totals of the run when the turn began.
    totals: Totals = NO_TOTALS
    #: Messages that joined the turn: their digests, by id.
    joined: dict[str, str] = {}
    #: The number of messages after this entry that a compaction has made.
    compacted: int = 0

    def includes(self, turn_id: str) -> bool:
        """Whether the message with this id began the turn or joined it."""
        return turn_id == self.turn_id or turn_id in self.joined

    def get_digest(self, turn_id: str) -> str:
        return self.digest if turn_id == self.turn_id else self.joined[turn_id]


class TurnRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that has ended."""

    input: TurnInput
    status: TurnStatus = "done"
    #: The output, once the turn is done, as plain data.
    output: Any = None
    #: Why a turn that is not done ended.
    error: str = ""
    #: What this turn alone used, child runs included.
    usage: Usage = NO_USAGE
    steps: int = 0
    elapsed: timedelta = timedelta(0)
    at: datetime


class TurnMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of the mail that begins a turn or joins one."""

    #: Text, or content parts as plain data. `None`: the text is in `text`.
    content: str | list[Any] | None = None
    #: As `encode_message` writes it.
    text: str = ""
    digest: str = ""

    @classmethod
    def from_mail(cls, mail: Mail) -> "TurnMessage":
        return msgspec.json.decode(mail.body, type=cls)

    @property
    def prompt(self) -> str | list[Any]:
        return self.text if self.content is None else self.content


def make_digest(content: str | list[JsonValue]) -> str:
    """Return a digest of the content of a message."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def summarize_input(content: str | list[Any]) -> str:
    """Return the beginning of a message as text."""
    return summarize_prompt(content)[:PROMPT_LENGTH]


class ConversationIdle(RunWaiting):
    """The conversation waits for its next message.

    What to do: Nothing, unless you have written a loop or a checkpointer: the run waits for mail.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, ())

    @property
    def reason(self) -> str:
        return "the next message"

    @property
    def wake_on(self) -> tuple[str, ...]:
        return IDLE_TOPICS

    @property
    def only_for_time(self) -> bool:
        return False
