"""Removes secrets from plain data before it is stored."""

import re
from collections.abc import Callable, Collection
from typing import Any

from holdfast.core.json_value import JsonValue

#: Maps plain data to plain data of the same shape, without secrets. Keys may change, but not their number and order.
Redact = Callable[[JsonValue], JsonValue]

REDACTED = "[redacted]"

#: Names under which secrets are usually found.
SECRET_NAMES = frozenset({"password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credentials"})


class Redactor:
    """A `Redact` that replaces values by their key, and text by patterns, in keys too.

    A key that could be the name of a parameter or a field, of letters, digits and `_`, is replaced only if a pattern
    matches all of it. Keys that become equal are told apart by letters, as `[redacted b]`.
    """

    def __init__(self, names: Collection[str] = SECRET_NAMES, patterns: Collection[str] = ()) -> None:
        """Make a redactor.

        Args:
            names: values under these keys are replaced. Case does not matter.
            patterns: regular expressions; their matches in any text are replaced.
        """
        self._names = frozenset(name.lower() for name in names)
        self._pattern = re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None

    def __call__(self, value: JsonValue) -> JsonValue:
        """Return `value` without its secrets."""
        if isinstance(value, str):
            return self._pattern.sub(REDACTED, value) if self._pattern else value
        if isinstance(value, list):
            return [self(each) for each in value]
        if isinstance(value, dict):
            return self._redact_dict(value)
        return value

    def _redact_dict(self, value: dict[str, Any]) -> JsonValue:
        redacted: dict[str, Any] = {}
        counts: dict[str, int] = {}
        for key, each in value.items():
            found = new = self._redact_key(key)
            while new != key and (new in redacted or new in value):
                counts[found] = counts.get(found, 0) + 1
                new = found.replace(REDACTED, f"[redacted {_to_letters(counts[found])}]", 1)
            redacted[new] = self._redact_value(key, each)
        return redacted

    def _redact_key(self, key: str) -> str:
        if self._pattern is None:
            return key
        if key.isidentifier():
            return REDACTED if self._pattern.fullmatch(key) else key
        return self._pattern.sub(REDACTED, key)

    def _redact_value(self, key: str, value: Any) -> JsonValue:
        return REDACTED if key.lower() in self._names and value not in (None, "", 0) else self(value)


def _to_letters(number: int) -> str:
    """Return a number without digits, which a pattern might match: a second redaction changes nothing."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))
