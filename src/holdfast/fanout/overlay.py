"""The files of a work folder as one model sees them: its own proposed writes over what is on disk."""

import threading
import zlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

import msgspec

from holdfast.core.execution.loop import FinishedCall
from holdfast.fanout.errors import PathRefused, WorkspaceChanged
from holdfast.fanout.snapshot import ProposedWrite
from holdfast.fanout.workspace import Workspace

#: A search gives no more lines than this.
MAX_MATCHES = 200
_MAX_LINE_LENGTH = 300


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool that proposes a write tells its model. With the call's arguments it is enough to do it again."""

    path: str
    #: Counted over all changes of this model: calls of one turn may be made in any order.
    change: int
    #: Of what the file holds now.
    crc32: int = 0


class Overlay:
    """The proposed writes of one model. Nothing here touches the disk. Safe to use from several threads."""

    def __init__(self, workspace: Workspace, writes: Iterable[ProposedWrite] = ()) -> None:
        self._workspace = workspace
        self._writes: dict[str, ProposedWrite] = {write.path: write for write in writes}
        self._change_count = 0
        self._lock = threading.RLock()

    @property
    def writes(self) -> tuple[ProposedWrite, ...]:
        """What is proposed, by path."""
        with self._lock:
            return tuple(self._writes[path] for path in sorted(self._writes))

    # -- as tools see it ----------------------------------------------------------------------------------------

    def read(self, path: str) -> str:
        """The text of a file.

        Raises:
            FileNotFoundError: there is none. PathRefused: it is outside of the folder, or no text.
        """
        key = self._workspace.resolve(path)
        text = self._read_text(key)
        if text is None:
            raise FileNotFoundError(f"there is no file {key}")
        return text

    def exists(self, path: str) -> bool:
        """Whether there is such a file, text or not.

        Raises:
            PathRefused: it is outside of the folder.
        """
        with self._lock:
            return self._is_file(self._workspace.resolve(path))

    def write(self, path: str, content: str) -> Change:
        """Propose that the file holds `content`.

        Raises:
            PathRefused: there can be no such file.
        """
        with self._lock:
            key = self._workspace.resolve(path)
            self._check_writable(key)
            return self._propose(ProposedWrite(path=key, content=content))

    def edit(self, path: str, old: str, new: str) -> Change:
        """Propose that `new` stands in place of `old`, which has to be there exactly once.

        Raises:
            FileNotFoundError: there is no such file. ValueError: `old` is not there, or more than once.
        """
        with self._lock:
            text = self.read(path)
            count = text.count(old) if old else 0
            if count != 1:
                raise ValueError(f"the old text is {count} times in {path}: give text that is there exactly once")
            return self._propose(ProposedWrite(path=self._workspace.resolve(path), content=text.replace(old, new)))

    def delete(self, path: str) -> Change:
        """Propose that the file goes.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._lock:
            key = self._workspace.resolve(path)
            if not self._is_file(key):
                raise FileNotFoundError(f"there is no file {key}")
            return self._propose(ProposedWrite(path=key, delete=True))

    def search(self, text: str, glob: str = "*") -> list[str]:
        """The lines that hold `text`, as `path:line: text`, in files whose path fits `glob`."""
        with self._lock:
            writes = dict(self._writes)
        keys = {*self._workspace.files(), *(key for key, write in writes.items() if not write.delete)}
        found: list[str] = []
        for key in sorted(key for key in keys if fnmatch(key, glob)):
            try:
                content = self._read_text(key) or ""
            except PathRefused:
                continue  # no text: there is nothing to be found in it
            for number, line in enumerate(content.splitlines(), 1):
                if text in line:
                    found.append(f"{key}:{number}: {line.strip()[:_MAX_LINE_LENGTH]}")
                    if len(found) >= MAX_MATCHES:
                        return found
        return found

    def _read_text(self, key: str) -> str | None:
        with self._lock:
            write = self._writes.get(key)
        if write is not None:
            return None if write.delete else write.content
        return self._workspace.read(key)

    def _is_file(self, key: str) -> bool:
        write = self._writes.get(key)
        return self._workspace.kind(key) == "file" if write is None else not write.delete

    def _check_writable(self, key: str) -> None:
        """A file cannot be where a folder is, nor below another file."""
        below = any(other.startswith(f"{key}/") and not write.delete for other, write in self._writes.items())
        if below or self._workspace.kind(key) in ("folder", "other"):
            raise PathRefused(f"{key} is a folder: a file cannot be written there")
        parts = key.split("/")
        for end in range(1, len(parts)):
            above = "/".join(parts[:end])
            if self._is_file(above) or self._workspace.kind(above) == "other":
                raise PathRefused(f"{above} is a file: nothing can be written below it")

    def _propose(self, write: ProposedWrite) -> Change:
        self._writes[write.path] = write
        self._change_count += 1
        return Change(path=write.path, change=self._change_count, crc32=zlib.crc32(write.content.encode()))

    # -- after a crash ------------------------------------------------------------------------------------------

    def replay(self, calls: Iterable[FinishedCall]) -> None:
        """Propose again what these calls did, in the order in which they did it.

        Raises:
            WorkspaceChanged: a file was changed on disk since, and an edit of it cannot be repeated.
        """
        done = [(_parse_change(call), call) for call in calls if call.tool in _REPLAY_BY_TOOL and not call.error]
        for change, call in sorted(((each, call) for each, call in done if each), key=lambda pair: pair[0].change):
            try:
                again = ProposedWrite(path=change.path, **_REPLAY_BY_TOOL[call.tool](self, change.path, call.arguments))
            except (ValueError, PathRefused) as exc:
                raise _make_changed_error(change.path) from exc
            if zlib.crc32(again.content.encode()) != change.crc32:
                raise _make_changed_error(change.path)
            with self._lock:
                self._writes[again.path] = again
                self._change_count = max(self._change_count, change.change)

    def _apply_edit(self, key: str, arguments: Mapping[str, Any]) -> str:
        text = self._read_text(key)
        if text is None or text.count(arguments["old"]) != 1:
            raise ValueError(key)
        return text.replace(arguments["old"], arguments["new"])


#: What a call of each tool proposed, once more.
_REPLAY_BY_TOOL: dict[str, Any] = {
    "write_file": lambda overlay, key, arguments: {"content": arguments["content"]},
    "edit_file": lambda overlay, key, arguments: {"content": overlay._apply_edit(key, arguments)},
    "delete_file": lambda overlay, key, arguments: {"delete": True},
}


def _parse_change(call: FinishedCall) -> Change | None:
    try:
        return msgspec.convert(call.content, Change)
    except msgspec.ValidationError:
        return None  # it is not ours: a tool of the agent's own has the same name


def _make_changed_error(key: str) -> WorkspaceChanged:
    return WorkspaceChanged(
        f"{key} was changed on disk since a model proposed to edit it: that model has to begin anew"
    )
