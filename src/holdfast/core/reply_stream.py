"""The reply that a model is writing: its text goes to listeners and watchers before the reply is complete."""

from contextvars import ContextVar
from typing import Protocol


class ReplyStream(Protocol):
    """Receives a reply as the model writes it."""

    async def emit_text(self, text: str) -> None: ...

    async def emit_reasoning(self, text: str) -> None: ...

    def restart_draft(self) -> None:
        """Withdraw what was emitted: the model failed and is asked again, or another one is."""
        ...


#: Set while the native loop calls a model.
CURRENT_REPLY: ContextVar[ReplyStream | None] = ContextVar("holdfast_reply", default=None)


async def emit_text(text: str) -> None:
    """Show text of the reply that this model is writing. Does nothing outside a model that a run has called.

    For models of the native loop that stream. The reply that the model returns has the whole text all the same.
    """
    if (stream := CURRENT_REPLY.get()) is not None:
        await stream.emit_text(text)


async def emit_reasoning(text: str) -> None:
    """Show reasoning that precedes the reply, as `emit_text` shows its text."""
    if (stream := CURRENT_REPLY.get()) is not None:
        await stream.emit_reasoning(text)
