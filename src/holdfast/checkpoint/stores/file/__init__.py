"""Runs in one folder, readable by eye: a JSON-lines journal for each. docs/stores/file.md shows the layout."""

from holdfast.checkpoint.stores.file.store import FileStore

__all__ = ["FileStore"]
