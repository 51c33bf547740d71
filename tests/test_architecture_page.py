"""The architecture page shows what the code does."""

import re
from pathlib import Path

from holdfast.checkpoint.record import TRANSITIONS, RunStatus
from holdfast.core.result import CheckpointAction

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def _edges() -> list[tuple[RunStatus, str, RunStatus]]:
    [picture] = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.strip() for line in picture.splitlines() if line.strip()]
    edges = [re.fullmatch(r"(\S+) --> (\S+): (\w+)", line) for line in lines]
    assert all(edges), "every line of the picture is an edge"

    def status(name: str) -> RunStatus:
        return RunStatus.REMOVED if name == "[*]" else RunStatus(name)

    return [(status(edge[1]), edge[3], status(edge[2])) for edge in edges if edge]


def test_the_edges_of_the_picture_are_the_transitions_of_the_code() -> None:
    edges = _edges()
    assert set(edges) == TRANSITIONS
    assert len(edges) == len(set(edges)), "no edge is drawn twice"


def test_the_outcome_table_has_every_settlement() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(settlement.value for settlement in CheckpointAction)


def test_every_module_that_the_page_names_exists() -> None:
    for package in ("run", "checkpoint"):
        heading = {"run": "In the kernel:", "checkpoint": "In the checkpoints:"}[package]
        table = PAGE.split(heading)[1].split("\n\n")[1]
        named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert named
        missing = {name for name in named if not (ROOT / "src" / "holdfast" / package / f"{name}.py").exists()}
        assert missing == set()
