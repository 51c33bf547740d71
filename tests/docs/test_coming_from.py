"""The page for people who know the Go originals has every name of theirs, and ours exist."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
TABLES = PAGE.split("## The Go originals")[1].split("\n## ")[0]
ROWS = [row.split("|")[1:3] for row in TABLES.splitlines() if row.startswith("| ")]

#: The names of the two Go libraries.
ORIGINAL = [
    "RunCheckpointMeta",
    "RunCheckpoint",
    "Messages",
    "Iteration",
    "CompletedPhases",
    "ActivePhase",
    "Save",
    "Load",
    "Delete",
    "ListInterrupted",
    "NewMemory",
    "New",
    "Complete",
    "Fail",
    "Factory",
    "NewFactory",
    "Begin",
    "RunInfo",
    "SubjectID",
    "Name",
    "WithResumeState",
    "WithExistingCheckpointer",
    "ErrShutdown",
    "Checkpointer",
    "Tick",
    "Loop",
    "Escalator",
    "ExtendOnce",
    "Checkpoint",
    "ResponseSnapshot",
    "WriteSnapshot",
    "Build",
    "Clear",
    "FromModelResponse",
    "SnapshotFromPartial",
    "ToModelResponse",
    "NewIncrementalSaver",
    "Update",
    "MarkCompleted",
]


@pytest.mark.parametrize("name", ORIGINAL)
def test_the_name_of_an_original_is_in_the_left_column(name: str) -> None:
    assert any(re.search(rf"`[^`]*\b{name}\b[^`]*`", left) for left, _ in ROWS)


@pytest.mark.parametrize("dotted", sorted(set(re.findall(r"`(holdfast\.[\w.]+\.\w+)", TABLES))))
def test_a_name_of_ours_exists(dotted: str) -> None:
    module, _, name = dotted.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", ["build", "save", "load", "clear"])
def test_a_function_of_the_fan_out_exists(name: str) -> None:
    assert callable(getattr(importlib.import_module("holdfast.fanout"), name))
