"""Makes the Starlette app that speaks the protocols of front ends."""

from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from holdfast.app import App
from holdfast.root_error import HoldfastError
from holdfast.web.api.application import check_origins, make_cors
from holdfast.web.api.problems import respond_to_error, respond_to_http_error, respond_to_unexpected_error
from holdfast.web.auth import Authorize
from holdfast.web.protocols.ag_ui import AGUIServer
from holdfast.web.protocols.chat_server import ChatServer
from holdfast.web.protocols.vercel_ai import VercelAIServer
from holdfast.web.security import WebApplication


def make_chat(app: App, *, authorize: Authorize | None = None, allowed_origins: Collection[str] = ()) -> Starlette:
    """Return a Starlette app for chats with the agents of an App, to be served alone or mounted under any prefix.

    `POST /ag-ui/{agent}` speaks AG-UI. `POST /vercel-ai/{agent}` and `GET /vercel-ai/{agent}/{id}/stream` speak the
    protocol of the Vercel AI SDK. Both have `GET .../{id}/messages` for the history. A client that disconnects ends
    nothing: it sends its request again, or resumes the stream.

    Args:
        authorize: as for `make_api`.
        allowed_origins: as for `make_api`.

    Raises:
        DefinitionError: `allowed_origins` has a wildcard.
    """
    check_origins(allowed_origins)
    chat = ChatServer(app, authorize, frozenset(allowed_origins))
    ag_ui, vercel = AGUIServer(chat), VercelAIServer(chat)
    return WebApplication(
        app,
        [
            Route("/ag-ui/{agent}", ag_ui.run, methods=["POST"]),
            Route("/ag-ui/{agent}/{thread_id}/messages", ag_ui.get_messages, methods=["GET"]),
            Route("/vercel-ai/{agent}", vercel.send, methods=["POST"]),
            Route("/vercel-ai/{agent}/{chat_id}/stream", vercel.resume, methods=["GET"]),
            Route("/vercel-ai/{agent}/{chat_id}/messages", vercel.get_messages, methods=["GET"]),
        ],
        middleware=make_cors(allowed_origins),
        exception_handlers={
            HoldfastError: respond_to_error,
            HTTPException: respond_to_http_error,
            Exception: respond_to_unexpected_error,
        },
    )
