"""The URL of a database: the batteries' tables in it, and the URL as it is shown."""

import re

from holdfast.db.tables import Tables, TablesError

POSTGRES_SCHEMES = ("postgresql", "postgres")


def tables_from_url(url: str) -> Tables:
    """Return the tables in the database that `url` names, not opened yet.

    Raises:
        TablesError: the URL names no database.
    """
    scheme = url.partition(":")[0]
    if scheme == "memory":
        from holdfast.db.sqlite_tables import MemoryTables

        return MemoryTables()
    if scheme in POSTGRES_SCHEMES:
        from holdfast.db.postgres_tables import PostgresTables

        return PostgresTables(url)
    if scheme == "sqlite":
        from holdfast.db.sqlite_tables import SqliteTables

        try:
            return SqliteTables(parse_sqlite_path(url))
        except ValueError as exc:
            raise TablesError(str(exc)) from None
    raise TablesError(f"no tables in {redact_url(url)!r}: write sqlite:PATH, postgresql://HOST/DATABASE or memory:")


def parse_sqlite_path(url: str) -> str:
    """Return the path in a `sqlite:` URL.

    Relative: `sqlite:runs.db`, `sqlite:///runs.db`. Absolute: `sqlite:/data/runs.db`, `sqlite:////data/runs.db`,
    as in SQLAlchemy.

    Raises:
        ValueError: it has no path, names memory, a user or a host. The text then does not quote it: it may hold a
            password.
    """
    if _has_account(url):
        raise ValueError("a sqlite: URL has a path, no user and no host: write sqlite:./runs.db")
    rest = url.partition(":")[2]
    path = rest.removeprefix("///") if rest.startswith("///") else rest.removeprefix("//")
    if not path:
        raise ValueError(f"{url!r} names no path: write sqlite:./runs.db")
    if path == ":memory:":
        raise ValueError("sqlite::memory: would be a file of that name: write memory:")
    return path


def redact_url(url: str) -> str:
    """Return the URL as it may be shown: without passwords, and cut short where one cannot be told apart."""
    scheme, _, _ = url.partition(":")
    if scheme in POSTGRES_SCHEMES:
        try:
            from holdfast.db.postgres_url import redact_postgres_url

            return redact_postgres_url(url)
        except (ImportError, ValueError):
            return f"{scheme}://..."
    if scheme == "sqlite":
        return "sqlite://..." if _has_account(url) else url
    # Only its first word cannot hold a password.
    word = re.match(r"[\w+.-]*", url)
    return f"{word[0]}..." if word and re.search("[@=?]", url) else url


def _has_account(url: str) -> bool:
    """Return whether a `sqlite:` URL has a user name or password, as if it named a server."""
    rest = url.partition(":")[2]
    return rest.startswith("//") and not rest.startswith("///") and "@" in rest
