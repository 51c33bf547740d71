"""A client of the HTTP API: `AsyncClient`, and `Client` for code without an event loop. Needs the extra `client`."""

from holdfast.extras import require_extra

with require_extra("client"):
    from holdfast.client.async_client import AsyncClient, AsyncConversation
    from holdfast.client.errors import ServerUnavailable
    from holdfast.client.sync_client import Client, Conversation

__all__ = ["AsyncClient", "AsyncConversation", "Client", "Conversation", "ServerUnavailable"]
