"""Reads the JSON body of a request, up to a bound."""

from typing import Any

import msgspec
from starlette.requests import Request

from holdfast.web.errors import RequestError

#: The largest body of a request. A message to a run may have 4 MiB, which JSON may make longer.
MAX_BODY_BYTES = 8 * 1024 * 1024


class BodyTooLarge(RequestError):
    """The body of the request is too large. It was not read to its end.

    What to do: Send a smaller body.
    """

    status = 413


class UnsupportedMediaType(RequestError):
    """The body of the request is not JSON by its Content-Type.

    What to do: Send `Content-Type: application/json`.
    """

    status = 415


class InvalidBody(RequestError):
    """The body of the request is not the JSON that this path expects.

    What to do: Correct the body as the message says; the OpenAPI description has its schema.
    """

    status = 422


async def read_body(request: Request, expected: Any) -> Any:
    """Return the body of the request, decoded as the type `expected`.

    Raises:
        BodyTooLarge: it has more than `MAX_BODY_BYTES`. UnsupportedMediaType: it is not declared as JSON.
        InvalidBody: it is not JSON of the expected type.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType("send JSON with the header Content-Type: application/json")
    body = await _read_bounded(request)
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(f"the body is not what this path expects: {exc}") from exc


async def _read_bounded(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _make_too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _make_too_large()
    return bytes(body)


def _make_too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is too large: send at most {MAX_BODY_BYTES} bytes")
