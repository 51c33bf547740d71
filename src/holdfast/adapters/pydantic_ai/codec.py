"""pydantic-ai's messages as bytes, one at a time."""

import base64
from dataclasses import replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_core import PydanticSerializationError

from holdfast.run.errors import PayloadError

#: In a message's metadata: the places of parts that are what a tool returned as plain bytes; JSON has only text for it.
_BYTES = "holdfast_bytes"

#: As pydantic-ai's own adapter of messages, but each for one kind: writing a reply takes half the time.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
_REPLIES = TypeAdapter(list[ModelResponse], config=_CONFIG)
_REQUESTS = TypeAdapter(list[ModelRequest], config=_CONFIG)


class PydanticAICodec:
    """Stores pydantic-ai's messages, in the JSON that pydantic-ai itself writes."""

    def encode(self, message: Any) -> bytes:
        try:
            if isinstance(message, ModelResponse):
                return _REPLIES.dump_json([message])[1:-1]
            return _REQUESTS.dump_json([_with_marked_bytes(message)])[1:-1]
        except (PydanticSerializationError, ValueError, TypeError, RecursionError) as exc:
            raise PayloadError(f"a {type(message).__name__} cannot be stored: {exc}") from exc

    def decode(self, body: bytes) -> ModelMessage:
        try:
            return _with_bytes(ModelMessagesTypeAdapter.validate_json(b"[%b]" % body)[0])
        except ValidationError as exc:
            raise PayloadError(f"this pydantic-ai cannot read a stored message: {exc}") from exc


CODEC = PydanticAICodec()


def _with_marked_bytes(message: ModelRequest) -> ModelRequest:
    places = [
        place
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolReturnPart) and isinstance(part.content, bytes)
    ]
    return replace(message, metadata={**(message.metadata or {}), _BYTES: places}) if places else message


def _with_bytes(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest) or not message.metadata or _BYTES not in message.metadata:
        return message
    metadata = dict(message.metadata)
    for place in metadata.pop(_BYTES):
        part = message.parts[place]
        assert isinstance(part, ToolReturnPart)
        part.content = base64.urlsafe_b64decode(str(part.content))
    return replace(message, metadata=metadata or None)
