"""Arguments of calls, as a model gave them: those that no store can keep, and those that a person may not change."""

import json
from typing import Any

import msgspec

from holdfast.core.errors import PayloadError
from holdfast.core.json_value import to_json_value

#: What the model reads in place of the result.
UNREADABLE_REASON = "JSON has no NaN, no infinity and no half of a surrogate pair"


def is_unreadable(arguments: Any) -> bool:
    """Whether no store can keep these arguments. Text that is no JSON is not: frameworks report that themselves."""
    try:
        if not isinstance(arguments, str):
            to_json_value(arguments, "the arguments")
        elif arguments:
            msgspec.json.decode(arguments)
    except (PayloadError, msgspec.MsgspecError, UnicodeError):
        return not isinstance(arguments, str) or _is_lenient_json(arguments) or not _is_utf8(arguments)
    return False


def _is_lenient_json(text: str) -> bool:
    """Whether Python's parser reads it, which accepts more than JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_fixed_schema(arguments: Any) -> dict[str, Any]:
    """Return a schema that only these arguments fit: the framework has no way to make the call with others."""
    if not isinstance(arguments, dict):
        return {"const": arguments}
    fields = {name: {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
