"""Nothing gets out of the work folder."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.fanout import Overlay, PathRefused, Workspace, WriteSnapshot
from holdfast.fanout.workspace import is_risky


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the work folder, and links to it and to its folder from within."""
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "work" / "inside.txt").write_text("inside")
    secret = tmp_path / "outside" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("secret")
    work = tmp_path / "work"
    (work / "file_link").symlink_to(secret)
    (work / "folder_link").symlink_to(secret.parent)
    (work / "sub" / "up_link").symlink_to("../../outside")
    (work / "chain").symlink_to("sub/up_link")
    (work / "loop").symlink_to("loop")
    (work / "dangling").symlink_to(tmp_path / "outside" / "new.txt")
    (work / "inner_link").symlink_to("sub")
    return secret


ESCAPES = [
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "/etc/passwd",
    "file_link",
    "folder_link/secret.txt",
    "sub/up_link/secret.txt",
    "chain/secret.txt",
    "folder_link/../outside/secret.txt",
    "dangling",
    "..",
    ".",
    "",
    "a\0b",
    "\ud800",
    "x" * 300,
]


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_lead_out_are_refused(outside: Path, path: str) -> None:
    folder = Workspace(outside.parents[1] / "work")
    overlay = Overlay(folder)
    for attempt in (
        lambda: overlay.read(path),
        lambda: overlay.write(path, "mine"),
        lambda: overlay.edit(path, "secret", "mine"),
        lambda: overlay.delete(path),
        lambda: folder.apply([WriteSnapshot(path=path, content="mine")]),
        lambda: folder.apply([WriteSnapshot(path=path, delete=True)]),
    ):
        with pytest.raises(PathRefused):
            attempt()
    assert overlay.writes == ()
    assert outside.read_text() == "secret"
    assert list(outside.parent.iterdir()) == [outside]


def test_a_link_to_itself_is_refused(outside: Path) -> None:
    overlay = Overlay(Workspace(outside.parents[1] / "work"))
    with pytest.raises(PathRefused):
        overlay.read("loop")
    with pytest.raises(PathRefused):
        overlay.write("loop/x", "mine")


def test_a_search_does_not_look_outside(outside: Path) -> None:
    overlay = Overlay(Workspace(outside.parents[1] / "work"))
    assert overlay.search("secret") == []
    assert overlay.search("inside") == ["inside.txt:1: inside"]


def test_a_search_leaves_out_files_that_cannot_be_named(tmp_path: Path) -> None:
    for name in (b"b.txt", b"caf\xe9.txt"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("needle")
    assert Overlay(Workspace(tmp_path)).search("needle") == ["b.txt:1: needle"]


def test_a_link_within_the_folder_is_the_file_it_leads_to(outside: Path) -> None:
    overlay = Overlay(Workspace(outside.parents[1] / "work"))
    assert overlay.write("inner_link/new.txt", "mine").path == "sub/new.txt"
    assert overlay.read("sub/new.txt") == "mine"


@pytest.mark.parametrize("what", ["the folder", "the file", "a folder that was not there"])
def test_a_link_that_appeared_since_is_not_followed(outside: Path, what: str) -> None:
    work = outside.parents[1] / "work"
    folder = Workspace(work)
    overlay = Overlay(folder)
    overlay.write("inside.txt", "applied")
    if what == "the folder":
        overlay.write("sub/secret.txt", "mine")
        (work / "sub" / "up_link").unlink()
        (work / "sub").rmdir()
        (work / "sub").symlink_to(outside.parent)
    elif what == "the file":
        overlay.write("sub/file.txt", "mine")
        (work / "sub" / "file.txt").symlink_to(outside)
    else:
        overlay.write("other/secret.txt", "mine")
        (work / "other").symlink_to(outside.parent)
    with pytest.raises(PathRefused):
        folder.apply(overlay.writes)
    assert outside.read_text() == "secret"
    assert list(outside.parent.iterdir()) == [outside]
    assert (work / "inside.txt").read_text() == "inside"


def test_a_link_that_appears_between_the_look_and_the_write_is_not_followed(outside: Path) -> None:
    """What `apply` does after it has looked at the paths, with the link in place by then."""
    work = outside.parents[1] / "work"
    (work / "other").symlink_to(outside.parent)
    folder = Workspace(work)
    for key in ("other/secret.txt", "file_link"):
        with pytest.raises((OSError, PathRefused)):
            folder._write(key, b"mine")
    assert outside.read_text() == "secret"


def test_only_text_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    overlay = Overlay(Workspace(tmp_path))
    for name in ("binary", "folder", "pipe"):
        with pytest.raises(PathRefused):
            overlay.read(name)
    with pytest.raises(PathRefused):
        overlay.write("pipe", "x")
    assert overlay.search("") == []


def test_what_is_applied_keeps_its_mode_and_makes_room_for_folders(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("old")
    (tmp_path / "script").chmod(0o775)
    (tmp_path / "place").write_text("a file")
    overlay = Overlay(Workspace(tmp_path))
    overlay.write("script", "new")
    overlay.delete("place")
    overlay.write("place/file.txt", "below")
    assert Workspace(tmp_path).apply(overlay.writes) == ["place", "place/file.txt", "script"]
    assert (tmp_path / "script").stat().st_mode & 0o777 == 0o775
    assert (tmp_path / "script").read_text() == "new"
    assert (tmp_path / "place" / "file.txt").read_text() == "below"


@pytest.mark.parametrize(
    "last",
    [
        WriteSnapshot(path="folder", content="x"),
        WriteSnapshot(path="folder", delete=True),
        WriteSnapshot(path="file/inner/x.py", content="x"),
        WriteSnapshot(path="pipe/x.py", content="x"),
        WriteSnapshot(path="changed/x.py", content="x"),
    ],
)
def test_nothing_is_applied_if_something_is_in_the_way(tmp_path: Path, last: WriteSnapshot) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "changed", "deleted"):
        (tmp_path / name).write_text("mine")
    writes = [WriteSnapshot(path="changed", content="theirs"), WriteSnapshot(path="deleted", delete=True), last]
    with pytest.raises(PathRefused, match="nothing was applied"):
        Workspace(tmp_path).apply(writes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed", "deleted", "file", "folder", "pipe"]
    assert (tmp_path / "changed").read_text() == "mine"


def test_a_workspace_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(PathRefused, match="is not a folder"):
            Workspace(tmp_path / name)


def test_the_largest_file_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    limit = 4 * 1024 * 1024
    (tmp_path / "large").write_bytes(b"x" * limit)
    (tmp_path / "larger").write_bytes(b"x" * (limit + 1))
    folder = Workspace(tmp_path)
    assert len(folder.read("large") or "") == limit
    with pytest.raises(PathRefused, match="too large"):
        folder.read("larger")


def test_a_name_has_at_most_255_bytes(tmp_path: Path) -> None:
    folder = Workspace(tmp_path)
    folder.apply([WriteSnapshot(path=f"sub/{'x' * 255}", content="long")])
    assert folder.read(f"sub/{'x' * 255}") == "long"
    for name in ("x" * 256, "é" * 128):
        with pytest.raises(PathRefused, match="is not a path relative to the workspace"):
            folder.resolve(f"sub/{name}")


def test_a_path_below_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = Workspace(tmp_path)
    assert (folder.read("file/below"), folder.read("missing"), folder.kind("file/below")) == (None, None, "")
    assert folder.apply([WriteSnapshot(path="file/below", delete=True)]) == ["file/below"]


def test_files_are_listed_without_links_and_excluded_folders(tmp_path: Path) -> None:
    for name in ("b/z.txt", "b/a.txt", "a.txt", ".git/config", "b/node_modules/x.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a.txt")
    assert list(Workspace(tmp_path).files()) == ["a.txt", "b/a.txt", "b/z.txt"]


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks/pre-commit",
        ".git/config",
        ".GIT/config",
        ".git",
        ".holdfast/runs.db",
        "sub/.git/config",
        "to_git/config",
    ],
)
def test_excluded_folders_are_neither_read_nor_written_nor_applied_into(tmp_path: Path, path: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("secret")
    (tmp_path / "to_git").symlink_to(".git")
    overlay = Overlay(Workspace(tmp_path))
    for use in (lambda: overlay.read(path), lambda: overlay.write(path, "x"), lambda: overlay.delete(path)):
        with pytest.raises(PathRefused):
            use()
    for delete in (False, True):
        with pytest.raises(PathRefused):
            Workspace(tmp_path).apply([WriteSnapshot(path="fine.txt"), WriteSnapshot(path=path, delete=delete)])
    assert (tmp_path / ".git" / "config").read_text() == "secret"
    assert [each.name for each in (tmp_path / ".git").iterdir()] == ["config"]
    assert overlay.search("secret") == []


@pytest.mark.parametrize(
    "path", [".github/workflows/ci.yml", ".envrc", "a/conftest.py", "Makefile", "hooks/x", "setup.py"]
)
def test_files_that_programs_execute_are_risky(path: str) -> None:
    assert is_risky(path)
    assert not is_risky("src/main.py")


def test_what_is_applied_is_synced_before_and_after_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    sync, rename, unlink = os.fsync, os.rename, os.unlink

    def record_sync(fd: int) -> None:
        made.append("fsync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"fsync {os.fstat(fd).st_size}")
        sync(fd)

    def record_rename(*args: Any, **options: Any) -> None:
        made.append("rename")
        rename(*args, **options)

    def record_unlink(*args: Any, **options: Any) -> None:
        made.append("unlink")
        unlink(*args, **options)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    monkeypatch.setattr(os, "unlink", record_unlink)
    folder = Workspace(tmp_path)
    folder.apply([WriteSnapshot(path="new/file", content="12345")])
    assert made == ["fsync folder", "fsync 5", "rename", "fsync folder"]
    made.clear()
    folder.apply([WriteSnapshot(path="new/file", delete=True)])
    assert made == ["unlink", "fsync folder"]


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(PathRefused, match="file: Input/output error"):
        Workspace(tmp_path).apply([WriteSnapshot(path="file", content="new")])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    workspace, write = Workspace(tmp_path), WriteSnapshot(path="a/b/c.txt", content="new")
    before = os.listdir("/proc/self/fd")
    workspace.apply([write])
    assert workspace.read("a/b/c.txt") == "new"
    assert workspace.read("a/b/missing.txt") is None
    workspace.apply([WriteSnapshot(path="a/b/c.txt", delete=True)])
    assert len(os.listdir("/proc/self/fd")) == len(before)
