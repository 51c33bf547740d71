"""Opens the batteries' tables beside the checkpoints."""

import re

from holdfast.db.tables import Tables, TablesError


def tables_from_url(url: str) -> Tables:
    """Return the tables in the database that `url` names, not opened yet.

    Raises:
        TablesError: the URL names no database that batteries can use; a `memory:` store has none.
    """
    scheme, colon, rest = url.partition(":")
    if scheme in ("postgresql", "postgres"):
        from holdfast.db.postgres import PostgresTables

        return PostgresTables(url)
    if scheme == "sqlite" and rest.removeprefix("//"):
        from holdfast.db.sqlite_tables import SqliteTables

        return SqliteTables(rest.removeprefix("//"))
    # Name only the scheme: the rest may hold a password.
    kind = f"a {scheme!r} store" if colon and re.fullmatch(r"[A-Za-z0-9+.-]+", scheme) else "what was given"
    raise TablesError(f"batteries keep nothing in {kind}: use sqlite:PATH or postgresql://..., or their memory store")
