"""The SQL files of this package, read for the schema that a store uses."""

import functools
import re
from importlib import resources
from importlib.resources.abc import Traversable

_SQL = resources.files(__package__) / "sql"


class Scripts:
    """The SQL of one store. The files are written for the schema `holdfast`; another name is put in here."""

    def __init__(self, schema: str) -> None:
        """Raises `ValueError` for a name that PostgreSQL would have to see quoted."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema):
            raise ValueError(f"{schema!r} cannot be a schema: use up to 48 small letters, digits and underscores")
        self.schema = schema

    @functools.cached_property
    def migrations(self) -> list[str]:
        """In order. After the nth of them the schema has version n."""
        return [self._read(file) for file in _files("migrations")]

    @functools.cached_property
    def functions(self) -> list[str]:
        """Of the newest version. In any order, so they are created without a look into their bodies."""
        return [self._read(file) for file in _files("functions")]

    def query(self, name: str) -> str:
        return self._read(_SQL / "queries" / f"{name}.sql")

    def inline(self, sql: str) -> str:
        """A statement that is too small for a file, for this schema."""
        return re.sub(r"\bholdfast\.", f'"{self.schema}".', sql.replace("'holdfast'", f"'{self.schema}'"))

    def _read(self, file: Traversable) -> str:
        return self.inline(file.read_text(encoding="utf-8"))


def _files(folder: str) -> list[Traversable]:
    return sorted((_SQL / folder).iterdir(), key=lambda file: file.name)
