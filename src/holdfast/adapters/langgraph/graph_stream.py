"""The streams of a graph as events: the text of replies, the updates of nodes, and what nodes write themselves."""

from collections.abc import Collection
from typing import Any, Literal, get_args

import msgspec
from langchain_core.messages import AIMessageChunk
from langgraph.types import StreamMode
from pydantic import BaseModel

from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value

#: LangGraph's stream modes that are shown.
Stream = Literal["messages", "updates", "custom"]

#: LangGraph's update for nodes that wait: the run reports it as `CallsWaiting`.
_INTERRUPT = "__interrupt__"


def parse_streams(given: bool | Collection[Stream]) -> tuple[StreamMode, ...]:
    """Return the stream modes of the option `stream`.

    Raises:
        DefinitionError: there is no such stream.
    """
    if isinstance(given, bool):
        return ("messages", "custom") if given else ()
    known = get_args(Stream)
    if isinstance(given, str) or not set(given) <= set(known):
        raise DefinitionError(f"stream is {given!r}: use True, False, or a list of {', '.join(known)}")
    return tuple(mode for mode in known if mode in given)


async def emit_chunk(context: StepContext, ns: tuple[str, ...], mode: str, chunk: Any) -> None:
    """Show a chunk of a stream to watchers and listeners.

    Args:
        context: the step in which the chunk came.
        ns: the subgraphs around the node, from the outside in.
        mode: the stream.
        chunk: as LangGraph yields it.
    """
    if mode == "messages":
        if isinstance(chunk[0], AIMessageChunk):
            await _emit_message(context, chunk[0])
    elif mode == "custom" or _INTERRUPT not in chunk:
        await context.emit_custom(mode, to_plain_data(chunk), path=ns)


async def _emit_message(context: StepContext, chunk: AIMessageChunk) -> None:
    for block in chunk.content_blocks:
        if block["type"] == "text":
            await context.emit_text(block["text"])
        elif block["type"] == "reasoning":
            await context.emit_reasoning(block.get("reasoning", ""))


def to_plain_data(value: Any) -> Any:
    """Return the value as JSON data. An object without such a form becomes its text."""
    try:
        return to_json_value(msgspec.to_builtins(value, str_keys=True, enc_hook=_lower), "a value of the graph")
    except (PayloadError, TypeError, ValueError):
        return str(value).encode(errors="replace").decode()


def _lower(value: Any) -> Any:
    # Messages are models of pydantic, too.
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)
