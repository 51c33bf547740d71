"""Values that a store can keep without changing them: what the model sees is what is stored."""

from typing import Any

import msgspec

from holdfast.run.errors import PayloadError

#: A JSON value: None, bool, int of any size, finite float, str, list, dict with str keys.
Plain = Any

_BINARY = (bytes, bytearray, memoryview)


def plain(value: Any, what: str) -> Plain:
    """`value` as plain data that reads back equal. Structs, dataclasses, dates, enums and the like are lowered.

    Raises:
        PayloadError: it holds something that would come back changed or not at all, such as NaN, raw bytes, a lone
            surrogate, a key that is no string, or an object of a class of its own.
    """
    if value is None or value is True or value is False or type(value) is int:
        return value
    try:
        lowered = msgspec.to_builtins(value, builtin_types=_BINARY)
        back = msgspec.json.decode(msgspec.json.encode(lowered))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as exc:
        raise PayloadError(f"{what} cannot be stored: {exc}; use plain JSON data") from exc
    if back != lowered:
        raise PayloadError(
            f"{what} would come back changed: NaN, infinity, bytes and keys that are not text have no JSON form; "
            "convert them first"
        )
    return back
