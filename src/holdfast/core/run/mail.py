"""Mail: what others send to a run. Durable when posted, consumed once."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.errors import RunInterrupted
from holdfast.core.run.messages import NO_USAGE, Usage

#: The topic of messages. A run reads them before its next step.
MESSAGE_TOPIC = "message"
#: The topic of the notice that a child run may continue.
CHILD_TOPIC = "child"
#: The topic of the notice that the limits of a budget were raised.
BUDGET_TOPIC = "budget"
#: The topics of notices that a run in the background has ended begin with this. Its id follows.
ENDED_TOPIC = "ended:"


def make_ended_topic(run_id: str) -> str:
    """Return the topic of the notice that this run has ended."""
    return f"{ENDED_TOPIC}{run_id}"


class EndNotice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tells a run that one which it has started in the background has ended."""

    run_id: str
    agent: str
    status: Literal["done", "failed", "cancelled"]
    #: What it used. Zero for a detached run, which is no child.
    usage: Usage = NO_USAGE


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """One message, answer or signal to a run."""

    #: Unique within the run. The sender chooses it, so that posting again posts nothing.
    mail_id: str
    #: What it is about, such as `message` or `answer:3:CALL`. A waiting run names the topics that wake it.
    topic: str
    #: Encoded by the sender. Opaque to stores. Empty once it was consumed: the entry that used it has the content.
    body: bytes
    #: Set by the store.
    posted_at: datetime | None = None


class MailArrived(RunInterrupted):
    """Mail arrived while the run was about to end, to wait, or to record that none has come. It reads the mail first.

    What to do: Nothing: a worker resumes the run.
    """

    def __init__(self, message: str, mail: Sequence[Mail] = ()) -> None:
        super().__init__(message)
        #: The unread mail of a run whose save was refused. Empty for one that was about to end or to wait.
        self.mail: Sequence[Mail] = mail


def encode_message(content: str | list[Any]) -> bytes:
    """Encode the body of a message: text, or content parts as plain data."""
    return msgspec.json.encode({"text": content} if isinstance(content, str) else {"content": content})


def decode_message(mail: Mail) -> str | list[Any]:
    """Return the text of a message, or its content parts as plain data."""
    body: dict[str, Any] = msgspec.json.decode(mail.body)
    content: str | list[Any] | None = body.get("content")
    return str(body["text"]) if content is None else content


class Mailbox:
    """The unread mail of one run, in the process that executes it.

    Mail that is taken is consumed by the next save, in the same write as the entries that use it. So the code that
    takes mail changes the state of the run before anything is awaited.
    """

    __slots__ = ("_consumed", "_taken", "reserved", "unread")

    def __init__(self, consumed: list[str], unread: Sequence[Mail] = ()) -> None:
        """Make a mailbox. The ids of taken mail are added to `consumed`."""
        self._consumed = consumed
        #: By id, oldest first.
        self.unread: dict[str, Mail] = {mail.mail_id: mail for mail in unread}
        #: Topics whose mail belongs to a call that waits for it, or is about to.
        self.reserved: set[str] = set()
        #: All that was ever taken: a delivery may have been read before it was consumed.
        self._taken: set[str] = set()

    def deliver(self, mail: Sequence[Mail]) -> None:
        """Add mail that the store has. Known mail is ignored."""
        for each in mail:
            if each.mail_id not in self._taken:
                self.unread.setdefault(each.mail_id, each)

    def find(self, topic: str) -> "Sequence[Mail]":
        """Return the mail of the topic. It stays unread."""
        return [mail for mail in self.unread.values() if mail.topic == topic]

    def has(self, topic: str) -> bool:
        return bool(self.unread) and any(mail.topic == topic for mail in self.unread.values())

    def peek(self, *topics: str) -> Mail | None:
        """Return the oldest mail of these topics. It stays unread."""
        return next((mail for mail in self.unread.values() if mail.topic in topics), None)

    def take(self, mail: Mail) -> None:
        """Consume the mail with the next save."""
        del self.unread[mail.mail_id]
        self._taken.add(mail.mail_id)
        self._consumed.append(mail.mail_id)

    def take_all(self, topic: str) -> Sequence[Mail]:
        """Consume all mail of the topic with the next save."""
        taken = self.find(topic) if self.unread else ()
        for mail in taken:
            self.take(mail)
        return taken
