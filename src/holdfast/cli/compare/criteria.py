"""Success criteria, and their checks against a response."""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.fanout.errors import PathRefused
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.responses import ModelResponse
from holdfast.fanout.workspace import Workspace

#: A check quotes this much of the end of a command's output.
_MAX_OUTPUT_BYTES = 2000


class Contains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file contains this text."""

    path: str
    text: str


class Criterion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of: a file exists, a file contains a text, a command succeeds.

    The command runs in a copy of the workspace with the response's writes applied. It may execute code that a model
    wrote.
    """

    file_exists: str | None = None
    contains: Contains | None = None
    run: str | None = None
    #: Timeout of the command. Then its process group is killed.
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.file_exists, self.contains, self.run)) != 1:
            raise ValueError("a criterion has exactly one of file_exists, contains and run")

    def __str__(self) -> str:
        if self.contains is not None:
            return f"{self.contains.path} contains {self.contains.text!r}"
        return f"{self.file_exists} exists" if self.file_exists is not None else f"run {self.run}"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The check of one criterion."""

    criterion: str
    passed: bool
    #: The end of a failed command's output, or the error of a file.
    detail: str = ""


async def check_response(response: ModelResponse, criteria: Sequence[Criterion], workspace: Path | str) -> list[Check]:
    """Check a response against all criteria, without changing the workspace."""
    return await asyncio.to_thread(_check_criteria, response, criteria, Workspace(workspace))


def _check_criteria(response: ModelResponse, criteria: Sequence[Criterion], workspace: Workspace) -> list[Check]:
    overlay = Overlay(workspace, response.proposed_writes)
    with contextlib.ExitStack() as stack:
        copy: Path | None = None
        checks: list[Check] = []
        for criterion in criteria:
            try:
                if criterion.run is None:
                    checks.append(_check_file(criterion, overlay))
                    continue
                copy = copy or _copy_workspace(workspace, response, stack)
                checks.append(_run_command(criterion, copy))
            except (PathRefused, OSError, shutil.Error) as exc:
                checks.append(Check(criterion=str(criterion), passed=False, detail=str(exc)))
        return checks


def _check_file(criterion: Criterion, overlay: Overlay) -> Check:
    contains = criterion.contains
    path = contains.path if contains is not None else criterion.file_exists or ""
    if not overlay.exists(path):
        return Check(criterion=str(criterion), passed=False, detail=f"{path} does not exist")
    return Check(criterion=str(criterion), passed=contains is None or contains.text in overlay.read(path))


def _copy_workspace(workspace: Workspace, response: ModelResponse, stack: contextlib.ExitStack) -> Path:
    """Copy the workspace and apply the writes. Keeps symbolic links. The stack removes the copy."""
    parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True)))
    copy = parent / workspace.root.name

    shutil.copytree(workspace.root, copy, symlinks=True, ignore=_list_ignored)
    Workspace(copy).apply(response.proposed_writes)
    return copy


def _list_ignored(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == ".holdfast" or not _is_copyable(os.path.join(folder, name))}


def _is_copyable(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _run_command(criterion: Criterion, folder: Path) -> Check:
    # A file instead of a pipe: a background process of the command could keep a pipe open forever.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", criterion.run or ""],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(criterion.seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_OUTPUT_BYTES))
        text = output.read().decode(errors="replace")
    if timed_out:
        text += f"\nkilled after {criterion.seconds:g} s"
    passed = not timed_out and process.returncode == 0
    return Check(criterion=str(criterion), passed=passed, detail="" if passed else text.strip())
