"""What can go wrong with stored definitions."""

from datetime import timedelta

from holdfast.errors import HoldfastError
from holdfast.run.errors import RunInterrupted


class DefinitionStoreError(HoldfastError):
    """A stored definition could not be read or written."""


class DefinitionNotFound(DefinitionStoreError):
    """There is no such definition, or it is not shared with the one who asks."""

    def __init__(self, kind: str, owner: str, name: str, version: int | None = None) -> None:
        which = "" if version is None else f" version {version}"
        super().__init__(f"no {kind} {owner}/{name}{which}: it never was, was removed, or is not shared")
        self.kind, self.owner, self.name, self.version = kind, owner, name, version


class DefinitionsUnavailable(DefinitionStoreError, RunInterrupted):
    """The definitions could not be read now. Nothing is wrong with the run: it goes on when they can."""

    retry_after = timedelta(seconds=5)


class MalformedDefinition(DefinitionStoreError):
    """A document is not what it should be: its front matter, a field, or a name."""
