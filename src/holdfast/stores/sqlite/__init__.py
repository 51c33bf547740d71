"""The SQLite store: the default one, for one host and many processes."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
