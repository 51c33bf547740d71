"""Any Python string as PostgreSQL text and back.

PostgreSQL refuses two kinds of characters that a Python string may hold, NUL and lone surrogates. They are escaped with
a backslash, and so is the backslash itself; all other text is stored as it is.
"""

import re
from collections.abc import Sequence

_REFUSED = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|[0-9a-f]{4})")


def to_text(value: str) -> str:
    return _REFUSED.sub(_escape, value) if _REFUSED.search(value) else value


def to_texts(values: Sequence[str]) -> Sequence[str]:
    """Each of them. Nearly never is there anything to escape, so one look at all of them has to do."""
    return [to_text(value) for value in values] if _REFUSED.search("".join(values)) else values


def from_text(stored: str) -> str:
    return _ESCAPED.sub(_unescape, stored) if "\\" in stored else stored


def _escape(match: re.Match[str]) -> str:
    return "\\\\" if match[0] == "\\" else f"\\{ord(match[0]):04x}"


def _unescape(match: re.Match[str]) -> str:
    return "\\" if match[1] == "\\" else chr(int(match[1], 16))
