"""Front-end protocols: AG-UI and the Vercel AI SDK, for conversations. Needs the extra `front-ends`."""

from holdfast.web.protocols.application import make_chat

__all__ = ["make_chat"]
