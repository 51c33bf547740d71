"""The reference has every public name, and no other."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.public_api.names import read_reference

from holdfast import errors

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
REFERENCE = read_reference()
ENTRIES = [entry for entries in REFERENCE.values() for entry in entries]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _exported() -> dict[str, set[str]]:
    """The names that each package says are for others, by the package."""
    exported: dict[str, set[str]] = {}
    for file in (SOURCE / "holdfast").rglob("__init__.py"):
        for statement in ast.parse(file.read_text()).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
                package = ".".join(file.parent.relative_to(SOURCE).parts)
                exported[package] = set(ast.literal_eval(statement.value))
    return exported


def _imported_by(text: str) -> Iterator[str]:
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "holdfast":
            yield from (f"{statement.module}.{name.name}" for name in statement.names)


def _shown() -> set[str]:
    """The names that the documentation and the examples import."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    blocks = [block for page in pages for block in BLOCK.findall(page.read_text())]
    examples = [example.read_text() for example in (ROOT / "examples").rglob("*.py")]
    return {name for text in (*blocks, *examples) for name in _imported_by(text)}


def _public() -> list[str]:
    exported = _exported()
    names = {
        f"{package}.{name}"
        for package, own in exported.items()
        for name in own
        # One that the package above exports, too, is to be imported from there.
        if name not in exported.get(package.rpartition(".")[0], ())
    }
    # Errors are documented together, as those of `holdfast.errors`.
    return sorted(name for name in names | _shown() if name.rpartition(".")[2] not in errors.__all__)


def test_packages_export_names() -> None:
    assert {"holdfast", "holdfast.fanout", "holdfast.testing", "holdfast.batteries.audit"} <= _exported().keys()
    assert "holdfast.core.agents.agent.ModelTiers" in _shown()


@pytest.mark.parametrize("name", _public())
def test_a_public_name_is_in_the_reference(name: str) -> None:
    module = name.rpartition(".")[0]
    assert name in ENTRIES or module in ENTRIES, f"docs/reference/api lacks `::: {name}`"


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_in_the_reference_exists_and_is_there_once(entry: str) -> None:
    module, _, name = entry.rpartition(".")
    try:
        importlib.import_module(entry)
    except ModuleNotFoundError:
        assert hasattr(importlib.import_module(module), name)
    assert ENTRIES.count(entry) == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_is_on_the_page_of_its_module(entry: str) -> None:
    fitting = [module for module in REFERENCE if entry == module or entry.startswith(f"{module}.")]
    assert entry in REFERENCE[max(fitting, key=len)]


def test_the_index_and_the_navigation_list_every_page_of_the_reference() -> None:
    pages = {page.name for page in (ROOT / "docs" / "reference" / "api").glob("*.md")} - {"index.md"}
    index = (ROOT / "docs" / "reference" / "api" / "index.md").read_text()
    assert set(re.findall(r"\]\(([\w.]+\.md)\)", index)) == pages
    assert set(re.findall(r"reference/api/([\w.]+\.md)", (ROOT / "mkdocs.yml").read_text())) == pages | {"index.md"}
