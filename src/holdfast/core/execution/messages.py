"""The messages that the next step of a run takes."""

from typing import Any

import msgspec

from holdfast.core.json_value import to_json_value
from holdfast.core.run.mail import MESSAGE_TOPIC, Mailbox, decode_message
from holdfast.core.run.state import RunState
from holdfast.core.run.turns import TurnMessage


class Messages:
    """Messages that were sent to one run, and nudges of critics. The nudges come first."""

    __slots__ = ("_mailbox", "_state")

    def __init__(self, state: RunState, mailbox: Mailbox) -> None:
        self._state, self._mailbox = state, mailbox

    @property
    def is_empty(self) -> bool:
        return not self._state.nudges and not self._mailbox.has(MESSAGE_TOPIC)

    def add_nudge(self, text: str) -> None:
        """Add a nudge. It is saved with the run and survives a resume.

        Raises:
            PayloadError: no store could keep the text, such as half a surrogate pair. Nothing was changed.
        """
        self._state.nudges = (*self._state.nudges, to_json_value(text, "the message"))

    def peek(self) -> list[str | list[Any]]:
        """Return the messages: text, or content parts as plain data."""
        return [*self._state.nudges, *(decode_message(mail) for mail in self._mailbox.find(MESSAGE_TOPIC))]

    def take(self) -> list[str | list[Any]]:
        """Return and remove the messages. The loop puts them into the history before it awaits anything."""
        nudges, self._state.nudges = self._state.nudges, ()
        messages = self._mailbox.take_all(MESSAGE_TOPIC)
        if messages and (turn := self._state.turn) is not None:
            joined = {mail.mail_id: TurnMessage.from_mail(mail).digest for mail in messages}
            self._state.turn = msgspec.structs.replace(turn, joined={**turn.joined, **joined})
        return [*nudges, *map(decode_message, messages)]
