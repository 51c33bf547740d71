"""Definitions as Markdown: the fields as YAML front matter, the long text as the body."""

from typing import Any, TypeVar

import msgspec

from holdfast.batteries.definitions.store import MalformedDefinition

_FENCE = "---"

_T = TypeVar("_T")


def to_markdown(definition: msgspec.Struct, text_field: str) -> str:
    """Return the document: `text_field` as the body, all other fields as front matter."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    text = fields.pop(text_field)
    front = msgspec.yaml.encode(fields).decode()
    return f"{_FENCE}\n{front}{_FENCE}\n\n{text}\n"


def from_markdown(document: str, kind: type[_T], text_field: str) -> _T:
    """Parse a document into a definition of type `kind`.

    Raises:
        MalformedDefinition: it has no front matter, or a field is missing, unknown or of the wrong type.
    """
    document = document.removeprefix("\ufeff").lstrip()
    if document.startswith(f"{_FENCE}\r\n"):  # Windows line endings
        document = document.replace("\r\n", "\n")
    head, found, rest = document.partition(f"{_FENCE}\n")
    front, closed, text = rest.partition(f"\n{_FENCE}\n")
    if head or not found or not closed:
        raise MalformedDefinition(f"the document has no front matter: begin it with YAML between two lines of {_FENCE}")
    try:
        fields = msgspec.yaml.decode(front)
        if not isinstance(fields, dict):
            raise MalformedDefinition("the front matter is not a mapping: write one `name: value` per line")
        return msgspec.convert({**fields, text_field: text.strip("\n")}, kind)
    except msgspec.MsgspecError as exc:
        raise MalformedDefinition(f"the front matter is invalid: {exc}") from exc
