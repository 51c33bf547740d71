"""Describe the public API as text: one line for each name, parameter list and field, as the source states them.

`python -m tests.public_api.describe` writes it to `api.txt`.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.public_api.names import Definition, load_public_names

SNAPSHOT = Path(__file__).with_name("api.txt")


def describe_api() -> list[str]:
    """Return the lines. They do not depend on the version of Python."""
    public = sorted(load_public_names().items())
    return [line for name, found in public for line in _describe(name, found)]


def _describe(name: str, found: Definition) -> Iterator[str]:
    if found.is_function:
        yield ("async " if "async" in found.labels else "") + found.signature(name=name, return_type=True)
    elif found.is_attribute:
        annotation = f": {found.annotation}" if found.annotation else ""
        yield f"{name}{annotation} = {found.value}" if found.value else f"{name}{annotation}"
    else:
        yield f"{name}({', '.join(str(base) for base in found.bases)})"
        yield from (f"    {line}" for member in _select_members(found) for line in _describe(member.name, member))


def _select_members(found: Definition) -> list[Definition]:
    """Return the members that users see, without the tests of a suite; with those of base classes in holdfast."""
    members = {**found.inherited_members, **found.members}
    return [
        member
        for name, member in sorted(members.items())
        if (name == "__init__" or not name.startswith(("_", "test_"))) and member.canonical_path.startswith("holdfast.")
    ]


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(describe_api()) + "\n")
