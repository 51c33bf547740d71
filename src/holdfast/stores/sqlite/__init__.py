"""The SQLite store: the default one, for one host and many processes."""

from holdfast.stores.sqlite.sqlite_store import SqliteStore

__all__ = ["SqliteStore"]
