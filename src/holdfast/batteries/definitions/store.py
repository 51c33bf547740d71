"""Versions of definitions, their errors, the store protocol, and the store in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from holdfast.core.errors import RunInterrupted
from holdfast.root_error import HoldfastError


class DefinitionStoreError(HoldfastError):
    """A stored definition could not be read or written.

    What to do: The message has the database's error. The same call may be made again.
    """


class DefinitionNotFound(DefinitionStoreError):
    """There is no such definition or version.

    What to do: Check the name and the version, or store the definition first.
    """

    def __init__(self, kind: str, owner: str, name: str, version: int | None = None) -> None:
        which = "" if version is None else f" version {version}"
        super().__init__(f"no {kind} {owner}/{name}{which}: it was never saved, or it was removed")
        self.kind = kind
        self.owner = owner
        self.name = name
        self.version = version


class DefinitionsUnavailable(DefinitionStoreError, RunInterrupted):
    """The definitions cannot be read. The run is interrupted.

    What to do: Make their database reachable: a worker resumes the run.
    """

    retry_after: timedelta = timedelta(seconds=5)


class MalformedDefinition(DefinitionStoreError):
    """A definition has invalid front matter, an invalid field or an invalid name.

    What to do: Correct the definition as the message says, and store it again.
    """


#: The reader that stands for all owners.
ALL_READERS = "*"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one definition. Immutable once stored."""

    owner: str
    name: str
    #: Counts from 1. Never reused, not even after the definition was removed.
    number: int
    at: datetime
    #: JSON.
    body: bytes


class DefinitionStore(Protocol):
    """Keeps every version of every definition of one kind."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def save(self, owner: str, name: str, body: bytes, now: datetime) -> Version:
        """Store a new version under the next number. Concurrent saves get different numbers."""
        ...

    async def get(self, owner: str, name: str, number: int | None = None) -> Version:
        """Return that version, or the newest.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        """Return the newest version of each definition; with a reader, only of those it owns or may read."""
        ...

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Return every version, oldest first.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def share(self, owner: str, name: str, reader: str) -> None:
        """Share a definition with `reader`, or with `ALL_READERS`.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...

    async def remove(self, owner: str, name: str) -> None:
        """Delete all versions. The next save continues their numbers.

        Raises:
            DefinitionNotFound: there is none.
        """
        ...


class MemoryDefinitions:
    """Keeps definitions in memory, for one process. They do not survive the process."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._versions: dict[tuple[str, str], list[Version]] = {}
        self._readers: dict[tuple[str, str], set[str]] = {}
        #: Last number of each definition, removed ones included.
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
        matching = [version for version in versions if number in (None, version.number)]
        if not matching:
            raise DefinitionNotFound(self._kind, owner, name, number)
        return matching[-1]

    async def newest(self, reader: str | None = None) -> Sequence[Version]:
        return [
            versions[-1]
            for (owner, name), versions in sorted(self._versions.items())
            if reader is None or reader == owner or self._readers.get((owner, name), set()) & {reader, ALL_READERS}
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
