"""Conversations: runs that wait for the next message."""

from holdfast.runtime.conversations.conversation import CONVERSATION_LABEL, Conversation, When
from holdfast.runtime.conversations.turns import Turn

__all__ = ["CONVERSATION_LABEL", "Conversation", "Turn", "When"]
