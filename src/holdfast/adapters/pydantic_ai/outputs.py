"""An agent's output as plain data and back, by the types that the agent declares."""

import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai import DeferredToolRequests
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_core import PydanticSerializationError

from holdfast.run.errors import PayloadError

#: In a list, because pydantic takes a configuration only for what has none of its own.
_BASE64 = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Outputs:
    """Stores the outputs of one agent: plain; if there are several types to choose from, beside the type's name."""

    def __init__(self, spec: Any) -> None:
        self._types = {getattr(kind, "__name__", str(kind)): kind for kind in _kinds(spec)} or {"Any": Any}
        self._adapters = {name: _adapter(kind) for name, kind in self._types.items()}

    def dump(self, output: Any) -> Any:
        """Plain data.

        Raises:
            PayloadError: it has no such form, or would come back changed.
        """
        name = self._name(output)
        try:
            stored = self._dumped(name, output)
            again = self._dumped(name, self._adapters[name].validate_json(msgspec.json.encode([stored]))[0])
        except (PydanticSerializationError, ValidationError, ValueError, TypeError) as exc:
            raise PayloadError(f"the output cannot be stored: {exc}") from exc
        if again != stored:
            raise PayloadError(f"the output would come back changed: {stored!r:.200} became {again!r:.200}")
        return stored if len(self._types) == 1 else {"type": name, "value": stored}

    def load(self, stored: Any) -> Any:
        """The output again, of its type."""
        name = next(iter(self._types))
        if len(self._types) > 1:
            name, stored = stored["type"], stored["value"]
        adapter = self._adapters.get(name) or _adapter(Any)
        return adapter.validate_json(msgspec.json.encode([stored]))[0]

    def _dumped(self, name: str, output: Any) -> Any:
        return msgspec.json.decode(self._adapters[name].dump_json([output], warnings="error"))[0]

    def _name(self, output: Any) -> str:
        fitting = (name for name, kind in self._types.items() if _is_instance(output, kind))
        return next(fitting, next(iter(self._types)))


def _is_instance(output: Any, kind: Any) -> bool:
    bare = typing.get_origin(kind) or kind
    return bare is Any or (isinstance(bare, type) and isinstance(output, bare))


def _adapter(kind: Any) -> TypeAdapter[list[Any]]:
    try:
        return TypeAdapter(list[kind], config=_BASE64)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
        # No type but a description of one, which only pydantic-ai understands: its values are plain as it is.
        return TypeAdapter(list[Any], config=_BASE64)


def _kinds(spec: Any) -> Iterator[Any]:
    """The types that an output specification allows."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        for each in spec:
            yield from _kinds(each)
    elif isinstance(spec, ToolOutput):
        yield from _kinds(spec.output)
    elif isinstance(spec, NativeOutput | PromptedOutput):
        yield from _kinds(spec.outputs)
    elif isinstance(spec, TextOutput):
        yield from _kinds(spec.output_function)
    elif inspect.isfunction(spec) or inspect.ismethod(spec):
        yield from _kinds(typing.get_type_hints(spec).get("return", Any))
    elif typing.get_origin(spec) in (typing.Union, types.UnionType):
        yield from _kinds(typing.get_args(spec))
    elif spec is not DeferredToolRequests:
        yield type(None) if spec is None else spec
