"""The HTTP API as an ASGI application, and its OpenAPI description."""

import re
from collections.abc import Collection, Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.app import App
from holdfast.core.errors import DefinitionError
from holdfast.core.trace_context import continue_trace
from holdfast.root_error import HoldfastError
from holdfast.runtime.status_server import CONTENT_TYPE
from holdfast.web.api.conversation_operations import CONVERSATION_OPERATIONS
from holdfast.web.api.operation import Context, Operation, RequestParameter, read_body
from holdfast.web.api.problems import respond_to_error, respond_to_http_error, respond_to_unexpected_error
from holdfast.web.api.run_operations import RUN_OPERATIONS
from holdfast.web.auth import LOCAL_PRINCIPAL, Authorize, Principal, authenticate, check_origin, check_unix_socket
from holdfast.web.errors import Forbidden
from holdfast.web.security import WebApplication
from holdfast.web.sse import encode_json
from holdfast.web.wire import PROBLEM_JSON, Problem

_SCHEMA_PLACE = "#/components/schemas/{name}"


def make_openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of the operations as plain data."""
    operations = list(operations)
    bodies = [each for op in operations for each in (op.request, op.response, *op.other_responses.values())]
    types = [each for each in bodies if each is not None]
    schemas, components = _complete(msgspec.json.schema_components([*types, Problem], ref_template=_SCHEMA_PLACE))
    described = {repr(kind): schemas[place] for place, kind in enumerate([*types, Problem])}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "holdfast", "version": version("holdfast")},
        "paths": paths,
        "components": {"schemas": components},
    }


def _complete(schema: Any) -> Any:
    """Return a schema with what is sent for a duration, and with the items of an array that may have any.

    Generators of clients ignore operations with an array of unknown items.
    """
    if isinstance(schema, list | tuple):
        return [_complete(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "duration":
        return {"type": "number", "description": "Seconds.", **({"default": 0} if "default" in schema else {})}
    items: dict[str, Any] = {"items": {}} if schema.get("type") == "array" else {}
    return {**items, **{name: _complete(each) for name, each in schema.items()}}


def _describe(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)(?::\w+)?}", operation.path)
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    responses: dict[str, Any] = {}
    for status, kind in {operation.status: operation.response, **operation.other_responses}.items():
        responses[str(status)] = {"description": operation.summary}
        if kind is not None:
            responses[str(status)]["content"] = {operation.media_type: {"schema": schemas[repr(kind)]}}
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": path + list(map(_describe_parameter, operation.parameters)),
        "responses": {
            **responses,
            "default": {
                "description": "The request was refused.",
                "content": {PROBLEM_JSON: {"schema": schemas[repr(Problem)]}},
            },
        },
    }
    if operation.scope is not None:
        described["x-scope"] = operation.scope
    if operation.request is not None:
        body = {"application/json": {"schema": schemas[repr(operation.request)]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _describe_parameter(parameter: RequestParameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


#: All operations of the API, in the order of its description.
OPERATIONS: tuple[Operation, ...] = (*RUN_OPERATIONS, *CONVERSATION_OPERATIONS)

_CORS_HEADERS = ("authorization", "content-type", "idempotency-key", "last-event-id", "traceparent", "tracestate")


def make_api(app: App, *, authorize: Authorize | None = None, allowed_origins: Collection[str] = ()) -> Starlette:
    """Return the HTTP API of an App, to be served alone or mounted under any prefix.

    Served alone it opens the App when the server starts, and closes it at the end. Where it is mounted, the host opens
    the App. A client that disconnects ends no run.

    Args:
        authorize: returns the sender of a request, or `None`. Without it only clients of a Unix socket are served.
        allowed_origins: other origins, such as `https://chat.example.com`, whose pages may use the API.

    Raises:
        DefinitionError: `allowed_origins` has a wildcard.
    """
    check_origins(allowed_origins)
    server = _Server(app, authorize, frozenset(allowed_origins))
    return WebApplication(
        app,
        [
            *map(server.make_route, dict.fromkeys(operation.path for operation in OPERATIONS)),
            Route("/openapi.json", server.describe, methods=["GET"]),
            Route("/metrics", server.render_metrics, methods=["GET"]),
        ],
        middleware=make_cors(allowed_origins),
        exception_handlers={
            HoldfastError: respond_to_error,
            HTTPException: respond_to_http_error,
            Exception: respond_to_unexpected_error,
        },
    )


def check_origins(allowed_origins: Collection[str]) -> None:
    """Raise `DefinitionError` if it is not a list of origins."""
    if isinstance(allowed_origins, str) or "*" in allowed_origins:
        raise DefinitionError(f"allowed_origins is {allowed_origins!r:.80}: give a list of origins, without a wildcard")


def make_cors(allowed_origins: Collection[str]) -> list[Middleware]:
    """Return the middleware that lets pages of these origins read responses."""
    if not allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=_CORS_HEADERS,
        )
    ]


class _Server:
    """Serves the operations on one App."""

    def __init__(self, app: App, authorize: Authorize | None, allowed_origins: frozenset[str]) -> None:
        self._app, self._authorize, self._allowed_origins = app, authorize, allowed_origins
        self._description = encode_json(make_openapi(OPERATIONS))

    def make_route(self, path: str) -> Route:
        """Return the route of a path: one for all methods, so that `Allow` names them all."""
        by_method: dict[str, Operation] = {
            operation.method: operation for operation in OPERATIONS if operation.path == path
        }

        async def endpoint(request: Request) -> Response:
            return await self._serve(by_method[request.method], request)

        route = Route(path, endpoint, methods=list(by_method))
        assert route.methods is not None
        route.methods.discard("HEAD")  # it would read a stream to its end
        return route

    async def _serve(self, operation: Operation, request: Request) -> Response:
        principal = await self._authenticate(operation, request)
        if operation.check is not None:
            await operation.check(Context(self._app, principal, request, None))
        body = None if operation.request is None else await read_body(request, operation.request)
        with continue_trace(request.headers):
            result = await operation.handler(Context(self._app, principal, request, body))
        if isinstance(result, Response):
            return result
        content = None if operation.response is None else encode_json(result)
        media_type = operation.media_type if content is not None else None
        return Response(content, operation.status, media_type=media_type)

    async def _authenticate(self, operation: Operation, request: Request) -> Principal:
        if operation.scope is not None:
            principal = await authenticate(request, self._authorize, allowed_origins=self._allowed_origins)
            principal.require(operation.scope)
            return principal
        check_origin(request, self._allowed_origins)
        if self._authorize is None:
            check_unix_socket(request)
        return LOCAL_PRINCIPAL

    async def render_metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus. They are about the runs of all callers."""
        principal = await authenticate(request, self._authorize, allowed_origins=self._allowed_origins)
        principal.require("read")
        if not principal.sees_all or principal.run_id is not None:
            raise Forbidden("metrics are for principals that see all runs")
        return Response(await self._app.render_metrics(), headers={"content-type": CONTENT_TYPE})

    async def describe(self, request: Request) -> Response:
        """Return the OpenAPI description. It says nothing about the agents and runs of the App."""
        if self._authorize is None:
            check_unix_socket(request)
        return Response(self._description, media_type="application/json")
