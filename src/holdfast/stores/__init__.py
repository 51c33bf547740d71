"""Stores of runs. `holdfast.stores.sqlite` and `holdfast.stores.postgres` have those in a database."""

from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.stores.redacting import RedactingStore

__all__ = ["MemoryStore", "RedactingStore", "store_from_url"]
