"""The files of a workspace as one model sees them: its proposed writes over the files on disk, and its file tools."""

import zlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import msgspec

from holdfast.concurrency import THREADS
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool, tool
from holdfast.core.agents.tool_context import current_call
from holdfast.fanout.errors import FanoutError, PathRefused, WorkspaceChanged
from holdfast.fanout.workspace import Workspace, WriteSnapshot
from holdfast.runtime.reading.transcript import CallRecord

#: Limit of lines that a search returns.
MAX_MATCHES = 200
_MAX_LINE_LENGTH = 300
_WRITE_TOOLS = ("write_file", "edit_file", "delete_file")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool that proposes a write. Together with the call's arguments it is enough for a replay."""

    path: str
    #: Number of the change. It gives the order: the calls of one step may be executed in any order.
    change: int
    #: Checksum of the file's new content.
    crc32: int = 0


class Overlay:
    """The proposed writes of one model. Writes nothing to disk. Thread-safe."""

    def __init__(self, workspace: Workspace, writes: Iterable[WriteSnapshot] = ()) -> None:
        self._workspace = workspace
        self._writes: dict[str, WriteSnapshot] = {write.path: write for write in writes}
        self._change_count = 0
        self._lock = THREADS.get().make_lock()

    @property
    def writes(self) -> tuple[WriteSnapshot, ...]:
        """The proposed writes, sorted by path."""
        with self._lock:
            return tuple(self._writes[path] for path in sorted(self._writes))

    # -- for the tools ------------------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            FileNotFoundError: the file does not exist.
            PathRefused: the path leads out of the workspace, or the file is not text.
        """
        key = self._workspace.resolve(path)
        text = self._read_text(key)
        if text is None:
            raise FileNotFoundError(f"there is no file {key}")
        return text

    def exists(self, path: str) -> bool:
        """Return whether the file exists, text or not.

        Raises:
            PathRefused: the path leads out of the workspace.
        """
        with self._lock:
            return self._is_file(self._workspace.resolve(path))

    def write(self, path: str, content: str) -> Change:
        """Propose `content` as the file's content.

        Raises:
            PathRefused: no file can have this path.
        """
        with self._lock:
            key = self._workspace.resolve(path)
            self._check_writable(key)
            return self._propose(WriteSnapshot(path=key, content=content))

    def edit(self, path: str, old: str, new: str) -> Change:
        """Propose to replace `old` by `new`.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file does not contain `old` exactly once.
        """
        with self._lock:
            text = self.read(path)
            count = text.count(old) if old else 0
            if count != 1:
                raise ValueError(f"{path} contains the old text {count} times: give text that it contains exactly once")
            return self._propose(WriteSnapshot(path=self._workspace.resolve(path), content=text.replace(old, new)))

    def delete(self, path: str) -> Change:
        """Propose to delete the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        with self._lock:
            key = self._workspace.resolve(path)
            if not self._is_file(key):
                raise FileNotFoundError(f"there is no file {key}")
            return self._propose(WriteSnapshot(path=key, delete=True))

    def search(self, text: str, glob: str = "*") -> list[str]:
        """Return the lines that contain `text`, as `path:line: text`, in files whose path matches `glob`."""
        with self._lock:
            writes = dict(self._writes)
        keys = {*self._workspace.files(), *(key for key, write in writes.items() if not write.delete)}
        found: list[str] = []
        for key in sorted(key for key in keys if fnmatch(key, glob)):
            try:
                content = self._read_text(key) or ""
            except PathRefused:
                continue  # not text
            for number, line in enumerate(content.splitlines(), 1):
                if text in line:
                    found.append(f"{key}:{number}: {line.strip()[:_MAX_LINE_LENGTH]}")
                    if len(found) >= MAX_MATCHES:
                        return found
        return found

    def _read_text(self, key: str) -> str | None:
        write = self._writes.get(key)
        if write is not None:
            return None if write.delete else write.content
        return self._workspace.read(key)

    def _is_file(self, key: str) -> bool:
        write = self._writes.get(key)
        return self._workspace.kind(key) == "file" if write is None else not write.delete

    def _check_writable(self, key: str) -> None:
        """Raise if `key` is a folder or below a file."""
        below = any(other.startswith(f"{key}/") and not write.delete for other, write in self._writes.items())
        if below or self._workspace.kind(key) in ("folder", "other"):
            raise PathRefused(f"{key} is a folder: it cannot be written")
        parts = key.split("/")
        for end in range(1, len(parts)):
            parent = "/".join(parts[:end])
            if self._is_file(parent) or self._workspace.kind(parent) == "other":
                raise PathRefused(f"{parent} is a file: nothing can be written below it")

    def _propose(self, write: WriteSnapshot) -> Change:
        self._writes[write.path] = write
        self._change_count += 1
        return Change(path=write.path, change=self._change_count, crc32=zlib.crc32(write.content.encode()))

    # -- after a crash ------------------------------------------------------------------------------------------

    def replay(self, calls: Iterable[CallRecord]) -> None:
        """Propose the writes of these calls again, in their order.

        Raises:
            WorkspaceChanged: a file changed on disk, so an edit of it cannot be repeated.
        """
        changes = [(change, call) for call in calls if call.state == "done" and (change := _parse_change(call))]
        for change, call in sorted(changes, key=_change_number):
            try:
                write = self._repeat(change.path, call)
            except (ValueError, PathRefused) as exc:
                raise _make_changed_error(change.path) from exc
            if zlib.crc32(write.content.encode()) != change.crc32:
                raise _make_changed_error(change.path)
            with self._lock:
                self._writes[write.path] = write
                self._change_count = max(self._change_count, change.change)

    def _repeat(self, key: str, call: CallRecord) -> WriteSnapshot:
        if call.tool == "delete_file":
            return WriteSnapshot(path=key, delete=True)
        if call.tool == "write_file":
            return WriteSnapshot(path=key, content=call.arguments["content"])
        text = self._read_text(key)
        if text is None or text.count(call.arguments["old"]) != 1:
            raise ValueError(key)
        return WriteSnapshot(path=key, content=text.replace(call.arguments["old"], call.arguments["new"]))


def _change_number(pair: tuple[Change, CallRecord]) -> int:
    return pair[0].change


def _parse_change(call: CallRecord) -> Change | None:
    if call.tool not in _WRITE_TOOLS:
        return None
    try:
        return msgspec.convert(call.result, Change)
    except msgspec.ValidationError:
        return None  # the agent has its own tool of this name


def _make_changed_error(key: str) -> WorkspaceChanged:
    return WorkspaceChanged(
        f"{key} was changed on disk since a model proposed to edit it: that model has to start over"
    )


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
