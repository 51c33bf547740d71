"""The tools of a workspace: read files, search them, and propose changes."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.effects import Effect
from holdfast.core.tool import Tool, tool
from holdfast.core.tool_context import current_call
from holdfast.fanout.errors import FanoutError
from holdfast.fanout.overlay import Change, Overlay


def make_file_tools(overlays: Mapping[str, Overlay]) -> tuple[Tool, ...]:
    """Return `read_file`, `write_file`, `edit_file`, `delete_file` and `search`.

    Args:
        overlays: the overlay of each run, by run id, when a tool is called.
    """

    def overlay() -> Overlay:
        run_id = current_call().run_id
        if run_id not in overlays:
            raise FanoutError(f"run {run_id} has no workspace: it is not a cell of the fan-out")
        return overlays[run_id]

    @tool(effect=Effect.PURE)
    def read_file(path: str) -> str:
        """Read a text file. Paths are relative to the workspace."""
        return overlay().read(path)

    @tool(effect=Effect.PURE)
    def search(text: str, glob: str = "*") -> list[str]:
        """Find the lines that contain a text, in files whose path matches the glob pattern, as `path:line: text`."""
        return overlay().search(text, glob)

    # These never await: nothing else runs in this event loop between a change and the record of it.

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
    """Return `change` as plain data, which every loop can record."""
    fields: dict[str, Any] = msgspec.to_builtins(change)
    return fields
