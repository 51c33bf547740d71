"""Proposed writes behave like files, without a file being touched."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fanout import Overlay, PathRefused, Workspace, WorkspaceChanged, WriteSnapshot
from holdfast.runtime.reading.transcript import CallRecord

ON_DISK = {"a.txt": "one two", "sub/b.txt": "three", "sub/deep/c.txt": "four"}
PATHS = ["a.txt", "sub/b.txt", "sub/deep/c.txt", "new.txt", "sub/new.txt", "sub", "a.txt/below", "new.txt/below", "x/y"]
WORDS = ["one", "two", "three", "four", "five"]

OPERATIONS = st.one_of(
    st.tuples(st.just("write_file"), st.sampled_from(PATHS), st.lists(st.sampled_from(WORDS)).map(" ".join)),
    st.tuples(st.just("edit_file"), st.sampled_from(PATHS), st.sampled_from(WORDS), st.sampled_from(WORDS)),
    st.tuples(st.just("delete_file"), st.sampled_from(PATHS)),
)


def folder_at(path: Path) -> Workspace:
    for name, text in ON_DISK.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return Workspace(path)


def contents(path: Path) -> dict[str, str]:
    return {str(each.relative_to(path)): each.read_text() for each in path.rglob("*") if each.is_file()}


def in_model(files: dict[str, str], operation: tuple[Any, ...]) -> bool:
    """Do the same to a plain dict; whether it can be done. Folders that are on disk stay, even empty ones."""
    kind, path, *rest = operation
    folders = {"sub", "sub/deep"} | {name.rpartition("/")[0] for name in files}
    if kind == "write_file":
        above = [path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1)]
        if path in folders or any(each in files for each in above):
            return False
        files[path] = rest[0]
    elif path not in files:
        return False
    elif kind == "edit_file":
        if files[path].count(rest[0]) != 1:
            return False
        files[path] = files[path].replace(*rest)
    else:
        del files[path]
    return True


def on_overlay(overlay: Overlay, operation: tuple[Any, ...], number: int) -> CallRecord | None:
    """Do it as a tool would; the call as a loop would tell of it."""
    kind, path, *rest = operation
    names = {"write_file": ["content"], "edit_file": ["old", "new"], "delete_file": []}[kind]
    try:
        change = getattr(overlay, kind.removesuffix("_file"))(path, *rest)
    except (FileNotFoundError, ValueError, PathRefused):
        return None
    arguments = {"path": path, **dict(zip(names, rest, strict=True))}
    return CallRecord(
        call_id=f"{number}", tool=kind, arguments=arguments, state="done", result=msgspec.to_builtins(change)
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=12), st.randoms(use_true_random=False))
def test_it_is_what_a_plain_dict_would_be(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[Any, ...]], dice: Any
) -> None:
    path = tmp_path_factory.mktemp("work")
    overlay, files, calls = Overlay(folder_at(path)), dict(ON_DISK), []
    for number, operation in enumerate(operations):
        call = on_overlay(overlay, operation, number)
        assert (call is not None) == in_model(files, operation), operation
        calls += [call] if call else []
    for name in PATHS:
        if name in files:
            assert overlay.read(name) == files[name]
        elif name != "sub":
            with pytest.raises(FileNotFoundError):
                overlay.read(name)
    assert overlay.search("", "*") == sorted(
        f"{name}:1: {text.strip()}" for name, text in files.items() if text.splitlines()
    )
    assert contents(path) == ON_DISK
    # Calls of one turn stand in the history in the order they were asked for, not that in which they were made.
    dice.shuffle(calls)
    again = Overlay(Workspace(path))
    again.replay(calls)
    assert again.writes == overlay.writes
    Workspace(path).apply(overlay.writes)
    assert contents(path) == files


def test_an_edit_of_a_file_that_was_changed_since_cannot_be_repeated(tmp_path: Path) -> None:
    overlay = Overlay(folder_at(tmp_path))
    call = on_overlay(overlay, ("edit_file", "a.txt", "one", "1"), 1)
    assert call is not None
    for changed in ("one three", "nothing of the kind", None):
        if changed is None:
            (tmp_path / "a.txt").unlink()
        else:
            (tmp_path / "a.txt").write_text(changed)
        with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
            Overlay(Workspace(tmp_path)).replay([call])


def test_calls_that_failed_and_tools_of_the_same_name_are_not_repeated(tmp_path: Path) -> None:
    overlay = Overlay(folder_at(tmp_path))
    arguments = {"path": "a.txt", "content": "x"}
    overlay.replay(
        [
            CallRecord(call_id="1", tool="write_file", arguments=arguments, state="error", result="refused"),
            CallRecord(call_id="2", tool="write_file", arguments=arguments, state="done", result="of another tool"),
        ]
    )
    assert overlay.writes == ()


def test_a_file_exists_on_disk_or_as_a_proposed_write_until_it_is_deleted(tmp_path: Path) -> None:
    overlay = Overlay(folder_at(tmp_path))
    overlay.write("new.txt", "five")
    overlay.delete("a.txt")
    assert [overlay.exists(path) for path in ("sub/b.txt", "new.txt", "a.txt", "sub", "missing")] == [
        True, True, False, False, False
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["missing", "sub", "x/y"])
def test_a_file_that_does_not_exist_is_not_read_edited_or_deleted(tmp_path: Path, path: str) -> None:
    overlay = Overlay(folder_at(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"there is no file {path}"):
        overlay.delete(path)
    wrong = PathRefused if path == "sub" else FileNotFoundError
    with pytest.raises(wrong):
        overlay.read(path)
    with pytest.raises(wrong):
        overlay.edit(path, "one", "two")
    assert overlay.writes == ()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sub", "sub is a folder: it cannot be written"),
        ("x", "x is a folder: it cannot be written"),
        ("a.txt/below", "a.txt is a file: nothing can be written below it"),
        ("x/y/below", "x/y is a file: nothing can be written below it"),
        ("pipe", "pipe is a folder: it cannot be written"),
        ("pipe/below", "pipe is a file: nothing can be written below it"),
    ],
)
def test_a_file_that_could_not_be_made_is_not_proposed(tmp_path: Path, path: str, text: str) -> None:
    overlay = Overlay(folder_at(tmp_path), [WriteSnapshot(path="x/y", content="five")])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PathRefused, match=text):
        overlay.write(path, "six")
    assert [write.path for write in overlay.writes] == ["x/y"]
    overlay.delete("x/y")
    assert overlay.write("x", "a file now").path == "x"


def test_text_that_is_not_there_exactly_once_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one one two")
    overlay = Overlay(Workspace(tmp_path))
    for old, count in (("one", 2), ("three", 0), ("", 0)):
        with pytest.raises(ValueError, match=f"a.txt contains the old text {count} times"):
            overlay.edit("a.txt", old, "x")
    assert overlay.writes == ()


def test_changes_are_numbered_and_the_numbers_continue_after_a_replay(tmp_path: Path) -> None:
    overlay = Overlay(folder_at(tmp_path))
    calls = [on_overlay(overlay, ("write_file", "new.txt", word), number) for number, word in enumerate(WORDS[:2])]
    assert [call.result["change"] for call in calls if call] == [1, 2]
    again = Overlay(Workspace(tmp_path))
    again.replay([call for call in reversed(calls) if call])
    assert again.read("new.txt") == "two"
    assert again.write("new.txt", "three").change == 3


def test_an_overlay_begins_with_the_given_writes(tmp_path: Path) -> None:
    given = [WriteSnapshot(path="new.txt", content="five"), WriteSnapshot(path="a.txt", delete=True)]
    overlay = Overlay(folder_at(tmp_path), given)
    assert (overlay.read("new.txt"), overlay.exists("a.txt")) == ("five", False)
    assert [write.path for write in overlay.writes] == ["a.txt", "new.txt"]


def test_a_search_returns_at_most_200_lines_of_300_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("  " + "x" * 301 + "\n" + "x\n" * 198)
    (tmp_path / "b.txt").write_text("x\n" * 10)
    (tmp_path / "c.md").write_text("x")
    overlay = Overlay(Workspace(tmp_path))
    found = overlay.search("x")
    assert (len(found), found[0], found[-1]) == (200, "a.txt:1: " + "x" * 300, "b.txt:1: x")
    assert overlay.search("x", "*.md") == ["c.md:1: x"]
    assert len(overlay.search("x", "b*")) == 10
