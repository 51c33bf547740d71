"""Times and images of a transcript as safe HTML."""

import base64
import binascii
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

from holdfast.checkpoint.journal import Entry
from holdfast.runtime.reading.formatting import format_age

#: By media type, how such a file begins. No SVG: it is a document that may contain scripts.
_SIGNATURES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
#: Characters of Base64 that contain the longest of them.
_HEAD = 16
_BASE64 = ";base64,"
#: Names under which content parts keep their media type and their data.
_TYPE_NAMES, _DATA_NAMES = ("media_type", "mime_type", "mimeType"), ("data", "base64", "content")


class Image(msgspec.Struct, frozen=True):
    """A picture as it is stored."""

    media_type: str
    #: Base64.
    data: str

    def read(self) -> bytes:
        """Return the file; empty if it is not valid."""
        return _decode(self.data)

    @property
    def is_safe(self) -> bool:
        """Whether the file begins as one of its media type."""
        return _decode(self.data[:_HEAD]).startswith(_SIGNATURES[self.media_type])


def _decode(data: str) -> bytes:
    try:
        return base64.b64decode(data.encode(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def list_images(entry: Entry) -> list[Image]:
    """Return the pictures within an entry."""
    if b"image/" not in entry.body:
        return []
    try:
        return list(_find(msgspec.json.decode(entry.body)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _find(value: Any) -> Iterator[Image]:
    if isinstance(value, str):
        if value.startswith("data:") and _BASE64 in value[:60]:
            media_type, _, data = value.removeprefix("data:").partition(_BASE64)
            yield from _make(media_type, data)
    elif isinstance(value, list):
        for each in value:
            yield from _find(each)
    elif isinstance(value, dict):
        kind = next((value[name] for name in _TYPE_NAMES if isinstance(value.get(name), str)), "")
        content = next((value[name] for name in _DATA_NAMES if isinstance(value.get(name), str)), "data:")
        if kind in _SIGNATURES and not content.startswith("data:"):
            yield from _make(kind, content)
            return
        for each in value.values():
            yield from _find(each)


def _make(media_type: str, data: str) -> Iterator[Image]:
    if media_type in _SIGNATURES and (image := Image(media_type, data)).is_safe:
        yield image


def show_time(at: datetime) -> Markup:
    """Return an element with the time to the second. The script shows it in the reader's time zone."""
    return _show_time(at, "time", f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")


def show_age(at: datetime, now: datetime) -> Markup:
    """Return an element with the age of a time. The script keeps it up to date."""
    return _show_time(at, "age", format_age(now - at))


def _show_time(at: datetime, form: str, text: str) -> Markup:
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}" data-format="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        at.isoformat(), form, at, text
    )
