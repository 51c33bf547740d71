"""Reads server-sent events."""

from collections.abc import AsyncIterator
from typing import NamedTuple


class Frame(NamedTuple):
    """One event of the stream."""

    event: str
    data: str


async def read_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """Yield the complete frames of a stream. Comments, and a frame that is cut off, are ignored."""
    event, data = "", list[str]()
    async for line in _read_lines(chunks):
        name, _, value = line.partition(":")
        if not line:
            if data:
                yield Frame(event, "\n".join(data))
            event, data = "", []
        elif name == "event":
            event = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))


async def _read_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield lines as they are completed. The parts of a long line are joined once."""
    parts: list[bytes] = []
    async for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            parts.append(line)
            yield b"".join(parts).removesuffix(b"\r").decode()
            parts.clear()
        parts.append(rest)
