"""Values that a store can keep without changing them: what the model sees is what is stored."""

from typing import Any

import msgspec

from holdfast.run.errors import PayloadError

#: A JSON value: None, bool, int of some 4,000 digits at most, finite float, str, list, dict with str keys.
Plain = Any

_BINARY = (bytes, bytearray, memoryview)

#: An integer below it is one for whoever reads the JSON.
_SAFE = 2**53


def plain(value: Any, what: str) -> Plain:
    """`value` as plain data of its own that reads back equal.

    Structs, dataclasses, tuples, sets, dates, enums and the like are lowered.

    Raises:
        PayloadError: it holds something that would come back changed or not at all, such as NaN, raw bytes, a lone
            surrogate, a key that is no string, or an object of a class of its own.
    """
    if _is_simple(value):
        return value
    if type(value) is dict and _is_flat(value):
        return value.copy()
    try:
        lowered = msgspec.to_builtins(value, builtin_types=_BINARY)
        body = msgspec.json.encode(value)
        back = msgspec.json.decode(body)
        # Two keys that are one after lowering show only in the bytes.
        same = (back == lowered or _same(lowered, back)) and msgspec.json.encode(lowered) == body
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise PayloadError(f"{what} cannot be stored: {exc}; use plain JSON data") from exc
    if not same:
        raise PayloadError(
            f"{what} would come back changed: NaN, infinity, bytes, keys that are not text and keys that become the "
            "same text have no JSON form; convert them first"
        )
    return back


def _is_simple(value: Any) -> bool:
    """Whether a look is enough to see that it reads back as it is."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    return value is None or kind is bool or (kind is int and -_SAFE < value < _SAFE)


def _is_flat(value: dict[Any, Any]) -> bool:
    """Whether that can be seen of all that is in it. Most arguments of tools are like this."""
    for key, item in value.items():  # noqa: SIM110 - a generator would cost as much as all that it looks at
        if type(key) is not str or not key.isascii() or not _is_simple(item):
            return False
    return True


def _same(lowered: Any, back: Any) -> bool:
    """Whether they are equal, a tuple counting as the list it becomes."""
    if isinstance(lowered, list | tuple):
        return isinstance(back, list) and len(lowered) == len(back) and all(map(_same, lowered, back))
    if isinstance(lowered, dict):
        return (
            isinstance(back, dict)
            and lowered.keys() == back.keys()
            and all(_same(value, back[key]) for key, value in lowered.items())
        )
    return bool(lowered == back)
