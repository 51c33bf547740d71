"""Makes a store from its URL. Imports only the module of that store."""

import os

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import Durability, RunStore
from holdfast.db.urls import POSTGRES_SCHEMES, parse_sqlite_path, redact_url

DEFAULT_URL = "sqlite:.holdfast/runs.db"


def resolve_url(url: str | None) -> str:
    """Return `url`, or without one `HOLDFAST_STORE`, else the URL of the default store."""
    return url or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL


def store_from_url(url: str | None = None, *, durability: Durability = "full") -> RunStore:
    """Return the store that `url` names, not opened.

    Args:
        url: `memory:`, `sqlite:./runs.db` or `postgresql://...`. Without one: `HOLDFAST_STORE`, else
            a SQLite file under `.holdfast/` in the working directory.

    Raises:
        StoreError: the URL has an unknown scheme, or no path.
    """
    url = resolve_url(url)
    scheme = url.partition(":")[0]
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in POSTGRES_SCHEMES:
        from holdfast.stores.postgres import PostgresStore

        return PostgresStore(url, durability=durability)
    if scheme == "file":
        raise StoreError("holdfast has no file store: use sqlite:PATH. `holdfast export` writes runs as JSON lines")
    if scheme != "sqlite":
        raise StoreError(f"no store for {redact_url(url)!r}: write sqlite:PATH, postgresql://HOST/DATABASE or memory:")
    try:
        path = parse_sqlite_path(url)
    except ValueError as exc:
        raise StoreError(str(exc)) from None
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(path, durability=durability)
