"""Runs kept in PostgreSQL, for fleets."""

from holdfast.checkpoint.errors import StoreError

try:
    import psycopg  # noqa: F401
except ImportError as exc:
    raise StoreError(
        f"the PostgreSQL store needs psycopg, which cannot be imported ({exc}): pip install 'holdfast[postgres]'"
    ) from exc

from holdfast.stores.postgres.postgres_store import PostgresStore

__all__ = ["PostgresStore"]
