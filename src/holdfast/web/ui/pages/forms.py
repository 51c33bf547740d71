"""Reads the forms of the pages."""

from urllib.parse import parse_qsl

from starlette.requests import Request

from holdfast.core.errors import DefinitionError
from holdfast.runtime.mailer import MAX_MAIL_BYTES

_MAX_FORM_BYTES = 4 * MAX_MAIL_BYTES
#: A batch of a hundred calls in doubt has two for each.
_MAX_FIELDS = 250


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        DefinitionError: it is too large, or not one of the page.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise DefinitionError(f"the form has more than {_MAX_FORM_BYTES} bytes")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise DefinitionError("the form is not valid") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}
