"""Encodes pydantic-ai's messages as bytes, and an agent's output as plain data by its declared types."""

import base64
import inspect
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai import DeferredToolRequests
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_core import PydanticSerializationError

from holdfast.adapters.call_arguments import is_unreadable, show_unreadable
from holdfast.adapters.output_codec import OutputCodec
from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.run.messages import replace_half_pairs

#: In a message's metadata: the indexes of parts whose content is bytes, which JSON stores as text.
_BYTES_KEY = "holdfast_bytes"

#: pydantic writes 253 levels of lists and objects, and reads 197.
_SAFE_NESTING = 150

#: One adapter per kind of message: encoding a reply takes half the time of pydantic-ai's union adapter. The types are
#: in a list because pydantic takes a configuration only for a type that has none.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_REPLY_ADAPTER = TypeAdapter(list[ModelResponse], config=_CONFIG)
_REQUEST_ADAPTER = TypeAdapter(list[ModelRequest], config=_CONFIG)
_PARTS_ADAPTER: TypeAdapter[list[UserContent]] = TypeAdapter(list[UserContent], config=_CONFIG)


class PydanticAICodec:
    """Encodes pydantic-ai's messages in the JSON that pydantic-ai itself writes."""

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

    def check(self, message: Any) -> None:
        """Raise PayloadError unless the message can be stored and read again."""
        body = self.encode(message)
        if body.count(b"[") + body.count(b"{") > _SAFE_NESTING:
            self.decode(body)


CODEC = PydanticAICodec()


def replace_unstorable(reply: ModelResponse) -> None:
    """Replace what no store can keep: half surrogate pairs in texts, and arguments such as NaN.

    In place of such arguments there is a text that is no JSON, with the reason: pydantic-ai reports it to the model.
    """
    for part in reply.parts:
        if isinstance(part, TextPart | ThinkingPart):
            part.content = replace_half_pairs(part.content)
        elif isinstance(part, ToolCallPart) and is_unreadable(part.args):
            part.args = show_unreadable(part.args)


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


def dump_parts(parts: Sequence[Any]) -> list[Any]:
    """Return the content parts of a prompt in the JSON that pydantic-ai itself writes.

    Raises:
        DefinitionError: one is not a content part of pydantic-ai, or has no JSON form.
    """
    return [_dump_part(part) for part in parts]


def _dump_part(part: Any) -> Any:
    try:
        stored: list[Any] = msgspec.json.decode(_PARTS_ADAPTER.dump_json([part], warnings="error"))
        again = msgspec.json.decode(_PARTS_ADAPTER.dump_json(load_parts(stored), warnings="error"))
    except (PydanticSerializationError, PayloadError, ValueError, TypeError, RecursionError) as exc:
        raise DefinitionError(
            f"the content part {part!r:.80} cannot be used: give text, BinaryContent, ImageUrl, DocumentUrl or another "
            "content part of pydantic-ai that has a JSON form"
        ) from exc
    if again != stored:
        raise DefinitionError(f"the content part {part!r:.80} cannot be used: storing it would change it")
    return stored[0]


def load_parts(stored: list[Any]) -> list[UserContent]:
    """Return content parts from their stored form.

    Raises:
        PayloadError: this pydantic-ai does not know them.
    """
    try:
        return _PARTS_ADAPTER.validate_json(msgspec.json.encode(stored))
    except ValidationError as exc:
        raise PayloadError(f"this pydantic-ai cannot read the stored prompt: {exc}") from exc


def load_prompt(stored: str | list[Any]) -> str | list[UserContent]:
    """Return a prompt from its stored form. Raises as `load_parts`."""
    return stored if isinstance(stored, str) else load_parts(stored)


def make_output_codec(spec: Any) -> OutputCodec:
    """Return a codec for the outputs of an agent with this output specification."""
    return OutputCodec(list(_iter_types(spec)))


def _iter_types(spec: Any) -> Iterator[Any]:
    """Yield the types that an output specification allows."""
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
