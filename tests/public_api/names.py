"""The public names of holdfast: the entries of the API reference, read from the source."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference" / "api"
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)

#: A class, function or attribute of griffe, or an alias, which has the attributes of its target.
Definition = Any


def read_reference() -> dict[str, list[str]]:
    """Return the entries of the API reference by the module that is the title of their page."""
    pages = [page.read_text() for page in sorted(REFERENCE.glob("*.md")) if page.name != "index.md"]
    return {text.partition("\n")[0].removeprefix("# "): ENTRY.findall(text) for text in pages}


def load_public_names() -> dict[str, Definition]:
    """Return the definitions by name. A module that has an entry stands for the names that it exports."""
    package = griffe.load("holdfast", search_paths=[ROOT / "src"])
    public: dict[str, Definition] = {}
    for entry in chain.from_iterable(read_reference().values()):
        found = package[entry.removeprefix("holdfast.")]
        if found.is_module and found.name in found.members:
            found = found[found.name]  # the package exports the function of a module of the same name
        if found.is_module:
            public |= {f"{entry}.{name}": found[name] for name in found.exports or ()}
        else:
            public[entry] = found
    return public
