"""Tools by which a model reads a work folder and proposes changes to it."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.effects import Effect
from holdfast.core.tool import Tool, tool
from holdfast.core.tool_context import current_call
from holdfast.fanout.overlay import Change, Overlay


def make_file_tools(get_overlay: Callable[[str], Overlay]) -> tuple[Tool, ...]:
    """`read_file`, `write_file`, `edit_file`, `delete_file` and `search`.

    Args:
        overlay_of: the overlay of a run, by its id.
    """

    def overlay() -> Overlay:
        return get_overlay(current_call().run_id)

    @tool(effect=Effect.PURE)
    def read_file(path: str) -> str:
        """Read a text file. Paths are relative to the work folder."""
        return overlay().read(path)

    @tool(effect=Effect.PURE)
    def search(text: str, glob: str = "*") -> list[str]:
        """Find the lines that contain a text, in files whose path fits the glob pattern, as `path:line: text`."""
        return overlay().search(text, glob)

    # These never wait: between the change and the record of it nothing else happens in this event loop.

    @tool(effect=Effect.IDEMPOTENT)
    async def write_file(path: str, content: str) -> dict[str, Any]:
        """Write a text file, new or in place of the old one."""
        return _to_builtins(overlay().write(path, content))

    @tool(effect=Effect.IDEMPOTENT)
    async def edit_file(path: str, old: str, new: str) -> dict[str, Any]:
        """Replace a piece of text in a file. The old text has to be in the file exactly once."""
        return _to_builtins(overlay().edit(path, old, new))

    @tool(effect=Effect.IDEMPOTENT)
    async def delete_file(path: str) -> dict[str, Any]:
        """Delete a file."""
        return _to_builtins(overlay().delete(path))

    return read_file, write_file, edit_file, delete_file, search


def _to_builtins(change: Change) -> dict[str, Any]:
    """As plain data, which every kind of agent can record."""
    told: dict[str, Any] = msgspec.to_builtins(change)
    return told
