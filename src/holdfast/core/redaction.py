"""Removes secrets from plain data before it is stored."""

import re
from collections.abc import Callable, Collection
from typing import Any

from holdfast.core.json_value import JsonValue

#: Maps plain data to plain data of the same shape, without secrets.
Redact = Callable[[JsonValue], JsonValue]

REDACTED = "[redacted]"

#: Names under which secrets are usually found.
SECRET_NAMES = frozenset({"password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credentials"})


class Redactor:
    """A `Redact` that replaces values by their key, and text by patterns."""

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
            return {key: self._redact_value(key, each) for key, each in value.items()}
        return value

    def _redact_value(self, key: str, value: Any) -> JsonValue:
        return REDACTED if key.lower() in self._names and value not in (None, "", 0) else self(value)
