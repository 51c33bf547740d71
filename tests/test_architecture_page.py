"""The architecture page shows what the code does."""

import re
import tomllib
from pathlib import Path

from holdfast.core.run.status import TRANSITIONS, AttemptEnd, RunStatus

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


PICTURE = (ROOT / "docs" / "assets" / "run-states.svg").read_text()


def _edges(lines: list[str]) -> list[tuple[RunStatus, str, RunStatus]]:
    edges = [re.fullmatch(r"(\S+) --> (\S+): (\w+)", line) for line in lines]
    assert all(edges), "every line of the diagram is an edge"

    def status(name: str) -> RunStatus:
        return RunStatus.REMOVED if name == "[*]" else RunStatus(name)

    return [(status(edge[1]), edge[3], status(edge[2])) for edge in edges if edge]


def test_the_edges_of_the_diagram_are_the_transitions_of_the_code() -> None:
    [diagram] = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    edges = _edges([line.strip() for line in diagram.splitlines() if line.strip()])
    assert set(edges) == TRANSITIONS
    assert len(edges) == len(set(edges)), "no edge is drawn twice"


def test_the_picture_in_concepts_has_every_transition_but_removal() -> None:
    shown = re.findall(r'<g class="edge"><title>(.*?)</title><path d="[^"]+"/><text [^>]*>(\w+)</text>', PICTURE)
    edges = _edges([title.replace("&gt;", ">") for title, _ in shown])
    assert [label for _, label in shown] == [what for _, what, _ in edges], "the label is the word of the edge"
    assert set(edges) == {edge for edge in TRANSITIONS if edge[1] != "remove"}
    assert len(edges) == len(set(edges))


def test_the_outcome_table_has_every_checkpoint_action() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(end.value for end in AttemptEnd)


def test_the_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["name"] == "imports point down"]
    block = PAGE.split("## Layers")[1].split("```")[1].strip()
    shown = [re.split(r"\s{2,}", line)[0] for line in block.splitlines()]
    assert shown == [layer.replace("holdfast.", "") for layer in contract["layers"]]


def test_the_table_of_rooms_names_every_package() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \|", PAGE.split("## Rooms")[1].split("\n## ")[0], re.MULTILINE)
    source = ROOT / "src" / "holdfast"
    packages = [str(file.parent.relative_to(source)) for file in source.rglob("__init__.py") if file.parent != source]
    assert sorted(rows) == sorted(packages)


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`(\w+(?:/\w+)*\.py)`", PAGE)
    assert named
    assert [name for name in named if not (ROOT / "src" / "holdfast" / name).exists()] == []
