"""What can go wrong with stored definitions.

The contract of what keeps definitions, and the one in memory.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from holdfast.core.errors import RunInterrupted
from holdfast.errors import HoldfastError


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


#: Shared with this: shared with everybody.
EVERYBODY = "*"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one definition. Never changed once it is stored."""

    owner: str
    name: str
    #: Counts up from 1. What is removed and made again counts on: a number means one text for ever.
    number: int
    at: datetime
    #: JSON.
    body: bytes


class DefinitionStore(Protocol):
    """Keeps every version of every definition of one kind."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def save(self, owner: str, name: str, body: bytes, now: datetime) -> Version:
        """Keep a new version, with the next number, whoever else does so at the same time."""
        ...

    async def get(self, owner: str, name: str, number: int | None = None) -> Version:
        """That version, or the newest.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        """The newest version of every definition; with a reader, of those it owns or that are shared with it."""
        ...

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Every version, oldest first.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def share(self, owner: str, name: str, reader: str) -> None:
        """Let `reader` see it, or `EVERYBODY`.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def remove(self, owner: str, name: str) -> None:
        """Forget all versions, but not the last number.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...


class MemoryDefinitions:
    """Definitions of one process. Does not survive it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._versions: dict[tuple[str, str], list[Version]] = {}
        self._readers: dict[tuple[str, str], set[str]] = {}
        #: The last number of each that ever was.
        self._numbers: dict[tuple[str, str], int] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def save(self, owner: str, name: str, body: bytes, now: datetime) -> Version:
        self._numbers[owner, name] = number = self._numbers.get((owner, name), 0) + 1
        version = Version(owner=owner, name=name, number=number, at=now, body=body)
        self._versions.setdefault((owner, name), []).append(version)
        return version

    async def get(self, owner: str, name: str, number: int | None = None) -> Version:
        versions = self._versions.get((owner, name), [])
        fitting = [version for version in versions if number in (None, version.number)]
        if not fitting:
            raise DefinitionNotFound(self._kind, owner, name, number)
        return fitting[-1]

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        return [
            versions[-1]
            for (owner, name), versions in sorted(self._versions.items())
            if reader is None or reader == owner or self._readers.get((owner, name), set()) & {reader, EVERYBODY}
        ]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        await self.get(owner, name)
        return list(self._versions[owner, name])

    async def share(self, owner: str, name: str, reader: str) -> None:
        await self.get(owner, name)
        self._readers.setdefault((owner, name), set()).add(reader)

    async def remove(self, owner: str, name: str) -> None:
        await self.get(owner, name)
        del self._versions[owner, name]
        self._readers.pop((owner, name), None)
