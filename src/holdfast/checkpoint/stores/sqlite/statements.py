"""The SQL of the store, read from its files once."""

import re
from functools import cache
from importlib.resources import files

_FILES = files("holdfast.checkpoint.stores.sqlite") / "sql"
_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _sections() -> dict[str, str]:
    text = (_FILES / "statements.sql").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    sections = {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return {name: body.replace("{record}", sections["record"]) for name, body in sections.items()}


def _bare(body: str) -> str:
    # SQLite looks a statement up by its text each time: short texts are found faster.
    lines = (line.strip() for line in body.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--"))


def statement(name: str) -> str:
    """The statement that `statements.sql` calls so."""
    return _sections()[name]


def migrations() -> list[str]:
    """The scripts that lead from nothing to the newest schema; the n-th makes version n."""
    scripts = [file for file in (_FILES / "migrations").iterdir() if file.name.endswith(".sql")]
    ordered = sorted(scripts, key=lambda file: file.name)
    for version, file in enumerate(ordered, 1):
        assert int(file.name.partition("_")[0]) == version, f"{file.name} stands at place {version}"
    return [file.read_text(encoding="utf-8") for file in ordered]
