"""A definition as Markdown: its fields as YAML front matter, its long text as the body."""

from typing import Any, TypeVar

import msgspec

from holdfast.batteries.definitions.store import MalformedDefinition

_FENCE = "---"

_T = TypeVar("_T")


def to_markdown(definition: msgspec.Struct, text_field: str) -> str:
    """The document: everything but `text_field` in front, `text_field` below."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    text = fields.pop(text_field)
    front = msgspec.yaml.encode(fields).decode()
    return f"{_FENCE}\n{front}{_FENCE}\n\n{text}\n"


def from_markdown(document: str, kind: type[_T], text_field: str) -> _T:
    """The definition that a document describes.

    Raises:
        MalformedDefinition: it has no front matter, or a field that is missing, unknown or of the wrong kind.
    """
    document = document.removeprefix("\ufeff").lstrip()
    if document.startswith(f"{_FENCE}\r\n"):  # written with the line ends of Windows
        document = document.replace("\r\n", "\n")
    head, found, rest = document.partition(f"{_FENCE}\n")
    front, closed, text = rest.partition(f"\n{_FENCE}\n")
    if head or not found or not closed:
        raise MalformedDefinition(f"a document begins with front matter between two lines of {_FENCE}")
    try:
        fields = msgspec.yaml.decode(front)
        if not isinstance(fields, dict):
            raise MalformedDefinition("the front matter has to be a list of names and values")
        return msgspec.convert({**fields, text_field: text.strip("\n")}, kind)
    except msgspec.MsgspecError as exc:
        raise MalformedDefinition(f"the front matter does not fit: {exc}") from exc
