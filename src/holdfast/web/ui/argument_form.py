"""Forms for the arguments of a call, made from the schema of its tool, and read back with an error for each field."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

#: A call with more arguments is edited as one JSON text.
MAX_FIELDS = 24
#: Longer text gets more than one line.
_LINE = 60
#: Choices that a list shows; more are typed.
_MAX_CHOICES = 40

FieldKind = Literal["text", "number", "check", "choice", "json"]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One argument, as a person edits it."""

    name: str
    kind: FieldKind
    #: As it stands in the form.
    text: str = ""
    #: As the model asked for it.
    asked: str = ""
    choices: Sequence[str] = ()
    hint: str = ""
    is_required: bool = True
    error: str = ""

    @property
    def is_changed(self) -> bool:
        return self.text != self.asked

    @property
    def is_long(self) -> bool:
        return self.kind == "json" or len(self.asked) > _LINE or "\n" in self.asked


def make_fields(arguments: Any, schema: Mapping[str, Any] | None) -> list[Field]:
    """Return a field for each argument. None if they are no object, or too many: they are edited as JSON."""
    if not isinstance(arguments, dict):
        return []
    properties = (schema or {}).get("properties", {})
    required = (schema or {}).get("required", ())
    names = [*arguments, *(name for name in properties if name not in arguments)]
    if len(names) > MAX_FIELDS:
        return []
    return [_make_field(name, arguments, properties.get(name, {}), name in required) for name in names]


def _make_field(name: str, arguments: dict[str, Any], schema: Any, is_required: bool) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    value = arguments.get(name, schema.get("default"))
    kind = _get_kind(value, schema)
    choices = [_format(each, "text") for each in schema.get("enum", ())] if kind == "choice" else []
    text = "" if value is None and kind != "json" and not is_required else _format(value, kind)
    if kind == "choice" and text not in choices:
        choices = [text, *choices]
    hint = schema.get("description", "")
    return Field(
        name=name,
        kind=kind,
        text=text,
        asked=text,
        choices=choices,
        hint=hint if isinstance(hint, str) else "",
        is_required=is_required or name in arguments,
    )


def _get_kind(value: Any, schema: dict[str, Any]) -> FieldKind:
    choices = schema.get("enum")
    if isinstance(choices, list) and len(choices) <= _MAX_CHOICES and all(isinstance(each, str) for each in choices):
        return "choice" if value is None or isinstance(value, str) else "json"
    types = {schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()) if isinstance(each, dict))}
    if isinstance(value, bool) or (value is None and "boolean" in types):
        return "check"
    if isinstance(value, int | float) or (value is None and types & {"integer", "number"}):
        return "number"
    return "text" if isinstance(value, str) or (value is None and "string" in types) else "json"


def _format(value: Any, kind: FieldKind) -> str:
    if isinstance(value, str) and kind != "json":
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2 if kind == "json" else -1).decode(errors="replace")


def read_fields(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[list[Field], dict[str, Any]]:
    """Return the fields as they were filled in, with what is wrong with each, and the arguments that they give."""
    filled: list[Field] = []
    arguments: dict[str, Any] = {}
    for field in fields:
        given = form.get(f"arg-{field.name}", "false" if field.kind == "check" else "")
        text = "true" if field.kind == "check" and given == "on" else given
        error = ""
        if text == "" and not field.is_required:
            pass
        elif field.kind in ("text", "choice"):
            arguments[field.name] = text
        else:
            try:
                arguments[field.name] = msgspec.json.decode(text, type=float | int if field.kind == "number" else Any)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                error = "Give a number." if field.kind == "number" else "This is not JSON."
        filled.append(msgspec.structs.replace(field, text=text, error=error))
    return filled, arguments


def add_error(fields: Sequence[Field], mismatch: str) -> tuple[list[Field], str]:
    """Put what `find_mismatch` says to the field that it names. Returns the rest: an error of no field."""
    place, _, problem = mismatch.partition(": ")
    found = next((each.name for each in fields if re.match(rf"{re.escape(each.name)}(?:[.\[]|$)", place)), None)
    if found is None:
        return list(fields), mismatch
    text = f"This {problem}." if place == found else f"{mismatch}."
    return [msgspec.structs.replace(each, error=text if each.name == found else each.error) for each in fields], ""
