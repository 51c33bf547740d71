"""Makes a store from its URL, or from a table of the host. Imports only the module of that store."""

import os
from typing import cast

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import Durability, RunStore
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Closeable
from holdfast.core.redaction import Redact
from holdfast.db.urls import POSTGRES_SCHEMES, parse_sqlite_path, redact_url
from holdfast.stores.host import HostStore
from holdfast.stores.redacting import RedactingStore

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


def find_store(store: RunStore | CheckpointStore | str | None, redact: Redact | None = None) -> RunStore | None:
    """Return the store that a caller means, which redacts if `redact` is given; `None` for `None`.

    Args:
        store: a store, the URL of one (empty: the default), or a table of the host.

    Raises:
        DefinitionError: it is neither a store nor a URL.
        StoreError: the URL names no store.
    """
    if isinstance(store, type) or not isinstance(store, str | Closeable | CheckpointStore | None):
        raise DefinitionError(f"store is {store!r:.80}: give a store, the URL of one, or None")
    if isinstance(store, CheckpointStore) and not hasattr(store, "claim"):
        found: RunStore | None = HostStore(store)
    else:
        found = store_from_url(store or None) if isinstance(store, str) else cast("RunStore | None", store)
    return RedactingStore(found, redact) if found is not None and redact is not None else found
