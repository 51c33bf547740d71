"""The public names of holdfast: the entries of the API reference, read from the source."""

import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)

#: A class, function or attribute of griffe, or an alias, which has the attributes of its target.
Definition = Any


def load_public_names() -> dict[str, Definition]:
    """Return the definitions by name. A module that has an entry stands for the names that it exports."""
    package = griffe.load("holdfast", search_paths=[ROOT / "src"])
    entries = ENTRY.findall((ROOT / "docs" / "reference" / "api.md").read_text())
    public: dict[str, Definition] = {}
    for entry in entries:
        found = package[entry.removeprefix("holdfast.")]
        if found.is_module and found.name in found.members:
            found = found[found.name]  # the package exports the function of a module of the same name
        if found.is_module:
            public |= {f"{entry}.{name}": found[name] for name in found.exports or ()}
        else:
            public[entry] = found
    return public
