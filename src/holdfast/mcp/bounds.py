"""Results of tools as JSON whose size is bounded."""

import json
import unicodedata
from typing import Any

import msgspec

from holdfast.core.errors import PayloadError

#: The size of a result in characters: a model has to read it.
MAX_LENGTH = 60_000
#: How long texts in it may be. The first length with which the result fits is taken.
_TEXT_LENGTHS = (4_000, 1_000, 200)


def encode_bounded(value: Any) -> str:
    """Return `value` as JSON. Long texts are cut if they have to be.

    Control and invisible characters are escaped, so that a reader sees them.

    Raises:
        PayloadError: it has too many parts.
    """
    plain = msgspec.to_builtins(value)
    for length in _TEXT_LENGTHS:
        text = "".join(map(_escape, json.dumps(_cut(plain, length), ensure_ascii=False)))
        if len(text) <= MAX_LENGTH:
            return text
    raise PayloadError("the result is too large to be shown: ask for fewer runs or fewer items")


def _cut(value: Any, length: int) -> Any:
    match value:
        case str() if len(value) > length:
            return f"{value[:length]}... ({len(value) - length} more characters)"
        case dict():
            return {_cut(name, length): _cut(each, length) for name, each in value.items()}
        case list() | tuple():
            return [_cut(each, length) for each in value]
    return value


def _escape(character: str) -> str:
    """Escape what is invisible or changes the direction of text: categories Cc, Cf, Cs, Co, Zl and Zp."""
    if character.isascii() or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return json.dumps(character)[1:-1]
