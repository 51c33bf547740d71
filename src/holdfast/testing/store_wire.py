"""What a test and the store in its child process say to each other, typed by the store protocol itself."""

import functools
import typing
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.checkpoint.liveness import ProcessIdentity
from holdfast.checkpoint.store import CheckpointStore

#: A frame is its length in so many bytes, big-endian, and then a message.
LENGTH_BYTES = 4
#: The first word to the child, a frame with nothing in it: open the store.
OPEN = bytes(LENGTH_BYTES)


def connection_name(pid: int) -> str:
    """How a child process calls itself to a database server: its connections have to be told apart from others."""
    return f"holdfast-child-{pid}"


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first word of the child: its store is open."""

    process: ProcessIdentity
    durable: bool


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """To the child: call this method of the store."""

    number: int
    method: str
    arguments: msgspec.Raw


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call is about to be made."""

    number: int


class Returned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call has returned, and what."""

    number: int
    value: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the child: the call has raised, and what."""

    number: int
    error: str
    message: str
    attributes: dict[str, Any]


Answer = Hello | Begun | Returned | Raised


@functools.cache
def arguments_of(method: str) -> type[msgspec.Struct]:
    """The arguments of a method of the store, as a struct of their declared types."""
    hints = typing.get_type_hints(getattr(CheckpointStore, method))
    return msgspec.defstruct(method, [(name, hint) for name, hint in hints.items() if name != "return"])


@functools.cache
def result_of(method: str) -> Any:
    """The declared type of what a method of the store returns; a stream comes as a list."""
    hint = typing.get_type_hints(getattr(CheckpointStore, method))["return"]
    return list[typing.get_args(hint)[0]] if typing.get_origin(hint) is AsyncIterator else hint  # type: ignore[misc]


def frame(message: Call | Answer) -> bytes:
    packed = msgspec.msgpack.encode(message)
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed
