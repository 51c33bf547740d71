"""Arguments of calls, as a model gave them: those that no store can keep, and those that a person may not change."""

import json
from typing import Any

import msgspec

from holdfast.core.errors import PayloadError
from holdfast.core.json_value import MAX_NESTING, to_json_value

#: What the model reads in place of the result.
UNREADABLE_REASON = (
    f"JSON has no NaN, no infinity and no half of a surrogate pair, and {MAX_NESTING} levels of nesting are the limit"
)

#: Characters of unreadable arguments that the model reads.
_SHOWN_LENGTH = 2000


def is_unreadable(arguments: Any) -> bool:
    """Whether no store can keep these arguments. Text that is no JSON is not: frameworks report that themselves."""
    try:
        is_json = isinstance(arguments, str) and arguments
        to_json_value(msgspec.json.decode(arguments) if is_json else arguments, "the arguments")
    except (PayloadError, RecursionError):
        return True
    except (msgspec.MsgspecError, UnicodeError):
        return _is_lenient_json(arguments) or not _is_utf8(arguments)
    return False


def _is_lenient_json(text: str) -> bool:
    """Whether Python's parser reads it, which accepts more than JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # nested too deeply
        pass
    return True


def show_unreadable(arguments: Any) -> str:
    """Return the reason and the beginning of the arguments as ASCII text."""
    try:
        return f"{UNREADABLE_REASON}: {ascii(arguments)[:_SHOWN_LENGTH]}"
    except RecursionError:
        return UNREADABLE_REASON


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
