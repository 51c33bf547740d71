"""From a Python function's signature to a tool's schema and its argument check."""

import copy
import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.run.errors import DefinitionError


class Signature:
    """The parameters of one function, as a model sees them."""

    __slots__ = ("_fields", "_struct", "schema")

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the signature.

        Raises:
            DefinitionError: a parameter has no annotation, cannot be given by name, or has a type that no JSON fits.
        """
        name = getattr(function, "__name__", repr(function))
        self._fields = _fields(function, name)
        try:
            self._struct = msgspec.defstruct(name, self._fields, kw_only=True, forbid_unknown_fields=True)
            self.schema = _flat(msgspec.json.schema(self._struct))
        except (TypeError, ValueError, RuntimeError) as exc:
            raise DefinitionError(f"tool {name}: its parameters cannot be described as JSON: {exc}") from exc

    def arguments(self, given: Any) -> dict[str, Any]:
        """`given` as keyword arguments of the function, its own to change.

        Raises:
            ValueError: they do not fit; the message is meant for the model.
        """
        try:
            checked = msgspec.convert(msgspec.to_builtins(given), self._struct)
        except msgspec.ValidationError as exc:
            raise ValueError(str(exc)) from exc
        return msgspec.structs.asdict(checked)


def _fields(function: Callable[..., Any], name: str) -> list[Any]:
    # A partial is annotated where its function is, any other callable object at its class.
    annotated = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        hints = typing.get_type_hints(annotated, include_extras=True)
    except NameError as exc:
        raise DefinitionError(f"tool {name}: an annotation cannot be resolved: {exc}") from exc
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"tool {name}: parameter {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise DefinitionError(f"tool {name}: annotate the parameter {parameter.name}")
        hint = hints[parameter.name]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    return fields


def _default(value: Any) -> Any:
    # msgspec wants mutable defaults made anew for each call, which is what a tool's author means, too.
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: copy.copy(value))
    return msgspec.field(default=value)


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Providers want the object at the top, not behind a reference."""
    definitions = dict(schema.get("$defs", {}))
    reference = schema.get("$ref", "")
    top = dict(definitions.pop(reference.rpartition("/")[2], schema))
    top.pop("title", None)
    if definitions:
        top["$defs"] = definitions
    return top
