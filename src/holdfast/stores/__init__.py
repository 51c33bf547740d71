"""Stores. `holdfast.stores.sqlite` and `holdfast.stores.postgres` have those that need a driver."""

from holdfast.stores.from_url import store_from_url
from holdfast.stores.host import HostStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.redacting import RedactingStore

__all__ = ["HostStore", "MemoryStore", "RedactingStore", "store_from_url"]
