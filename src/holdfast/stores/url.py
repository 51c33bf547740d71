"""Makes a store from its URL. Imports only the module of that store."""

import os
import re

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import CheckpointStore, Durability

DEFAULT_URL = "sqlite:.holdfast/runs.db"


def store_from_url(url: str | None = None, *, durability: Durability = "full") -> CheckpointStore:
    """Return the store that `url` names, not opened.

    Args:
        url: `memory:`, `sqlite:./runs.db` or `postgresql://...`. Without one: `HOLDFAST_STORE`, else
            a SQLite file under `.holdfast/` in the working directory.

    Raises:
        StoreError: the URL has an unknown scheme, or no path.
    """
    url = url or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore()
    if scheme in ("postgresql", "postgres"):
        from holdfast.stores.postgres import PostgresStore

        return PostgresStore(url, durability=durability)
    if scheme == "file":
        raise StoreError("holdfast has no file store: use sqlite:PATH. `holdfast export` writes runs as JSON lines")
    if scheme != "sqlite":
        raise StoreError(f"no store for {_mask_url(url)!r}: use memory:, sqlite:PATH or postgresql://...")
    path = rest.removeprefix("//")
    if not path:
        raise StoreError(f"{url!r} names no path: write {scheme}:./somewhere")
    from holdfast.stores.sqlite import SqliteStore

    return SqliteStore(path, durability=durability)


def _mask_url(url: str) -> str:
    """Return the part of the URL that cannot hold a password."""
    word = re.match(r"[\w+.-]*", url)
    return f"{word[0]}..." if word and re.search("[@=?]", url) else url
