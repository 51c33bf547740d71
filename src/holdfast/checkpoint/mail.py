"""Mail: what others send to a run. Durable when posted, consumed once."""

from datetime import datetime

import msgspec


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """One message, answer or signal to a run."""

    #: Unique within the run. The sender chooses it, so that posting again posts nothing.
    mail_id: str
    #: What it is about, such as `message` or `answer:CALL`. A waiting run names the topics that wake it.
    topic: str
    #: Encoded by the sender. Opaque to stores. Empty once it was consumed: the entry that used it has the content.
    body: bytes
    #: Set by the store.
    posted_at: datetime | None = None


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a store to posted mail."""

    #: Whether this call added the mail. Otherwise the run had mail with this id before.
    is_new: bool
    #: The mail that the store has under this id: of the call that was first.
    mail: Mail
    #: Whether the run has consumed it.
    consumed: bool = False
