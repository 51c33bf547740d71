"""An agent's output as plain data, by the types that the agent declares. Needs pydantic."""

import typing
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError
from typing_extensions import is_typeddict

from holdfast.core.errors import PayloadError

_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OutputCodec:
    """Encodes the outputs of one agent. With several output types, the type's name is stored too."""

    def __init__(self, types: Sequence[Any]) -> None:
        self._types = {getattr(kind, "__name__", str(kind)): kind for kind in types} or {"Any": Any}
        self._adapters = {name: _make_adapter(kind) for name, kind in self._types.items()}

    def dump(self, output: Any) -> Any:
        """Return the output as plain data.

        Raises:
            PayloadError: it cannot be stored without changing it.
        """
        name = self._find_type_name(output)
        try:
            stored = self._encode(name, output)
            again = self._encode(name, self._adapters[name].validate_json(msgspec.json.encode([stored]))[0])
        except (PydanticSerializationError, ValidationError, ValueError, TypeError) as exc:
            raise PayloadError(f"the output cannot be stored: {exc}") from exc
        if again != stored:
            raise PayloadError(f"the output would come back changed: {stored!r:.200} became {again!r:.200}")
        return stored if len(self._types) == 1 else {"type": name, "value": stored}

    def load(self, stored: Any) -> Any:
        """Return the output from its stored form."""
        name = next(iter(self._types))
        if len(self._types) > 1:
            name, stored = stored["type"], stored["value"]
        adapter = self._adapters.get(name) or _make_adapter(Any)
        return adapter.validate_json(msgspec.json.encode([stored]))[0]

    def _encode(self, name: str, output: Any) -> Any:
        return msgspec.json.decode(self._adapters[name].dump_json([output], warnings="error"))[0]

    def _find_type_name(self, output: Any) -> str:
        fitting = (name for name, kind in self._types.items() if _is_instance(output, kind))
        return next(fitting, next(iter(self._types)))


def _is_instance(output: Any, kind: Any) -> bool:
    bare = typing.get_origin(kind) or kind
    if is_typeddict(bare):
        return isinstance(output, dict) and bare.__required_keys__ <= output.keys() <= bare.__annotations__.keys()
    return bare is Any or (isinstance(bare, type) and isinstance(output, bare))


def _make_adapter(kind: Any) -> TypeAdapter[list[Any]]:
    try:
        return TypeAdapter(list[kind], config=_CONFIG)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
        # A description of a type that only the agent's framework understands: its values are plain data.
        return TypeAdapter(list[Any], config=_CONFIG)
