"""pydantic-ai's messages as bytes, one at a time.

An agent's output as plain data and back, by the types that the agent declares.
"""

import base64
import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai import DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_core import PydanticSerializationError

from holdfast.core.errors import PayloadError

#: In a message's metadata: the places of parts that are what a tool returned as plain bytes; JSON has only text for it.
_BYTES_KEY = "holdfast_bytes"

#: As pydantic-ai's own adapter of messages, but each for one kind: writing a reply takes half the time.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_REPLY_ADAPTER = TypeAdapter(list[ModelResponse], config=_CONFIG)
_REQUEST_ADAPTER = TypeAdapter(list[ModelRequest], config=_CONFIG)


class PydanticAICodec:
    """Stores pydantic-ai's messages, in the JSON that pydantic-ai itself writes."""

    def encode(self, message: Any) -> bytes:
        try:
            if isinstance(message, ModelResponse):
                return _REPLY_ADAPTER.dump_json([message])[1:-1]
            return _REQUEST_ADAPTER.dump_json([_mark_bytes(message)])[1:-1]
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as exc:
            raise PayloadError(f"a {type(message).__name__} cannot be stored: {exc}") from exc

    def decode(self, body: bytes) -> ModelMessage:
        try:
            return _restore_bytes(ModelMessagesTypeAdapter.validate_json(b"[%b]" % body)[0])
        except ValidationError as exc:
            raise PayloadError(f"this pydantic-ai cannot read a stored message: {exc}") from exc


CODEC = PydanticAICodec()


def _mark_bytes(message: ModelRequest) -> ModelRequest:
    places = [
        place
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolReturnPart) and isinstance(part.content, bytes)
    ]
    return replace(message, metadata={**(message.metadata or {}), _BYTES_KEY: places}) if places else message


def _restore_bytes(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest) or not message.metadata or _BYTES_KEY not in message.metadata:
        return message
    metadata = dict(message.metadata)
    for place in metadata.pop(_BYTES_KEY):
        part = message.parts[place]
        assert isinstance(part, ToolReturnPart)
        part.content = base64.urlsafe_b64decode(str(part.content))
    return replace(message, metadata=metadata or None)


#: In a list, because pydantic takes a configuration only for what has none of its own.
_BASE64_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class OutputCodec:
    """Stores the outputs of one agent: plain; if there are several types to choose from, beside the type's name."""

    def __init__(self, spec: Any) -> None:
        self._types = {getattr(kind, "__name__", str(kind)): kind for kind in _iter_types(spec)} or {"Any": Any}
        self._adapters = {name: _make_adapter(kind) for name, kind in self._types.items()}

    def dump(self, output: Any) -> Any:
        """Plain data.

        Raises:
            PayloadError: it has no such form, or would come back changed.
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
        """The output again, of its type."""
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
    return bare is Any or (isinstance(bare, type) and isinstance(output, bare))


def _make_adapter(kind: Any) -> TypeAdapter[list[Any]]:
    try:
        return TypeAdapter(list[kind], config=_BASE64_CONFIG)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError):
        # No type but a description of one, which only pydantic-ai understands: its values are plain as it is.
        return TypeAdapter(list[Any], config=_BASE64_CONFIG)


def _iter_types(spec: Any) -> Iterator[Any]:
    """The types that an output specification allows."""
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        for each in spec:
            yield from _iter_types(each)
    elif isinstance(spec, ToolOutput):
        yield from _iter_types(spec.output)
    elif isinstance(spec, NativeOutput | PromptedOutput):
        yield from _iter_types(spec.outputs)
    elif isinstance(spec, TextOutput):
        yield from _iter_types(spec.output_function)
    elif inspect.isfunction(spec) or inspect.ismethod(spec):
        yield from _iter_types(typing.get_type_hints(spec).get("return", Any))
    elif typing.get_origin(spec) in (typing.Union, types.UnionType):
        yield from _iter_types(typing.get_args(spec))
    elif spec is not DeferredToolRequests:
        yield type(None) if spec is None else spec
