"""JSON values: data that a store returns unchanged."""

import re
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.core.errors import PayloadError

#: A JSON value: None, bool, int of some 4,000 digits at most, finite float, str, list, dict with str keys.
JsonValue = Any

#: Levels of lists and objects in one value. The codecs and Python itself fail at some 1,000 in all.
MAX_NESTING = 500

_BINARY_TYPES = (bytes, bytearray, memoryview)

#: A bracket of JSON, or a whole string, in which brackets do not count.
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')

#: Every JSON parser reads an integer below this exactly.
_MAX_SAFE_INTEGER = 2**53


def to_json_value(value: Any, label: str) -> JsonValue:
    """Return a copy of `value` as plain JSON data. Structs, dataclasses, tuples, sets, dates and enums are lowered.

    Raises:
        PayloadError: JSON cannot represent it exactly: NaN, raw bytes, a lone surrogate, a key that is not a string,
            an object of another class. Or it is nested deeper than `MAX_NESTING`.
    """
    if _is_json_scalar(value):
        return value
    if type(value) is dict and _is_flat_dict(value):
        return value.copy()
    try:
        lowered = msgspec.to_builtins(value, builtin_types=_BINARY_TYPES)
        body = msgspec.json.encode(value)
        _check_nesting(body, label)
        back = msgspec.json.decode(body)
        # Two keys that are one after lowering show only in the bytes.
        same = (back == lowered or _equal_as_json(lowered, back)) and msgspec.json.encode(lowered) == body
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise PayloadError(f"{label} cannot be stored: {exc}; use plain JSON data") from exc
    if not same:
        raise PayloadError(
            f"{label} would come back changed: NaN, infinity, bytes, keys that are not text and keys that become the "
            "same text have no JSON form; convert them first"
        )
    return back


def _check_nesting(body: bytes, label: str) -> None:
    """Refuse JSON that is nested too deeply for a store to load it again."""
    if body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return
    depth = 0
    for bracket in _BRACKETS.findall(body):
        depth += 1 if bracket in b"[{" else -1 if bracket in b"]}" else 0
        if depth > MAX_NESTING:
            raise PayloadError(f"{label} is nested deeper than {MAX_NESTING} levels: return flatter data")


def _is_json_scalar(value: Any) -> bool:
    """Whether it is a scalar that JSON certainly represents exactly."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value is None or kind is bool or (kind is int and -_MAX_SAFE_INTEGER < value < _MAX_SAFE_INTEGER)


def _is_flat_dict(value: dict[Any, Any]) -> bool:
    """Whether all keys and values are such scalars, as in most tool arguments."""
    for key, item in value.items():
        if type(key) is not str or not key.isascii() or not _is_json_scalar(item):
            return False
    return True


def _equal_as_json(lowered: Any, back: Any) -> bool:
    """Whether they are equal, a tuple counting as the list it becomes. JSON keeps lists and their lengths."""
    if isinstance(lowered, list | tuple):
        return all(map(_equal_as_json, lowered, back))
    if isinstance(lowered, dict):
        same_keys = lowered.keys() == back.keys()
        return same_keys and all(_equal_as_json(value, back[key]) for key, value in lowered.items())
    return bool(lowered == back)


def lower_durations(value: Any) -> Any:
    """Return a value as plain data for readers of other languages: a duration is its number of seconds.

    Types without a plain form become text.
    """
    plain = [msgspec.to_builtins(value, builtin_types=(timedelta, msgspec.Raw), enc_hook=str)]
    pending: list[Any] = [plain]  # no recursion: the limit of Python is below `MAX_NESTING` levels of two frames
    while pending:
        part = pending.pop()
        for key, item in list(part.items() if isinstance(part, dict) else enumerate(part)):
            if isinstance(item, timedelta):
                part[key] = item.total_seconds()
            elif isinstance(item, dict | list):
                pending.append(item)
            elif isinstance(item, tuple):
                part[key] = list(item)
                pending.append(part[key])
    return plain[0]
