"""Every error has an entry on the errors page and in `holdfast explain`: its cause, and what to do."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.cli.doctor import ERROR_MODULES, load_explanations
from holdfast.root_error import HoldfastError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"

_HEAD = """# Errors

Every error of holdfast is a `HoldfastError`. A message of the command line ends with a code, the name of its class.
`holdfast explain CODE` prints the entry of this page.
"""


def render_page() -> str:
    entries = [f"\n## {name}\n\n{text}\n" for name, text in load_explanations().items()]
    return _HEAD + "".join(entries)


def _errors_of_all_modules() -> Iterator[type[HoldfastError]]:
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        # Programs, which read their arguments or their environment when they are imported.
        if not module.name.endswith(("_main__", "_main", "crash_agent", "checked_store")):
            importlib.import_module(module.name)
    todo: list[type[HoldfastError]] = [HoldfastError]
    while todo:
        kind = todo.pop()
        if kind.__module__.startswith("holdfast."):
            yield kind
        todo += kind.__subclasses__()


def test_every_error_is_explained() -> None:
    # By module: those that other tests have imported would be found without being listed.
    assert {kind.__module__ for kind in _errors_of_all_modules()} <= set(ERROR_MODULES)
    silent = [name for name, text in load_explanations().items() if "What to do: " not in text]
    assert silent == ["HoldfastError"]


def test_the_page_has_the_same_texts() -> None:
    assert PAGE.read_text() == render_page(), f"write it again: {Path(__file__).name} has render_page()"
