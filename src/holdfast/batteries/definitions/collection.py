"""A collection of definitions of one kind, typed."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.batteries.database.errors import TablesUnavailable
from holdfast.batteries.definitions.errors import DefinitionsUnavailable, MalformedDefinition
from holdfast.batteries.definitions.store import EVERYBODY, DefinitionStore, Version
from holdfast.clock import Clock
from holdfast.run.agent import Agent
from holdfast.run.info import RunInfo


class Definition(Protocol):
    """What every definition has."""

    @property
    def owner(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def model_tier(self) -> str: ...


D = TypeVar("D", bound=Definition)


class Collection(Generic[D]):
    """Keeps, shows and shares definitions of one kind."""

    def __init__(self, kind: type[D], lower: Callable[[D], Agent], store: DefinitionStore, clock: Clock) -> None:
        """Make a collection.

        Args:
            lower: makes the agent that a definition describes, or raises what says what it lacks.
        """
        self._kind, self._store, self._clock = kind, store, clock
        self.lower = lower
        self._open = False

    async def save(self, definition: D) -> int:
        """Keep the definition as it is now. Returns its new version; runs that have begun keep theirs.

        Raises:
            HoldfastError: it cannot be lowered as it is. Nothing was kept.
        """
        self.lower(definition)
        store = await self._ready()
        body = msgspec.json.encode(definition)
        return (await store.save(definition.owner, definition.name, body, self._clock.now())).number

    async def get(self, owner: str, name: str, version: int | None = None) -> D:
        """That version, or the newest."""
        return self.read(await (await self._ready()).get(owner, name, version))

    async def newest(self, reader: str | None = None) -> Sequence[D]:
        """The newest version of each; with a reader, of those it owns or that are shared with it."""
        return [self.read(version) for version in await (await self._ready()).newest(reader)]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Every version, oldest first."""
        return await (await self._ready()).history(owner, name)

    async def share(self, owner: str, name: str, reader: str = EVERYBODY) -> None:
        """Let another owner see it, or everybody."""
        await (await self._ready()).share(owner, name, reader)

    async def remove(self, owner: str, name: str) -> None:
        """Forget all versions. Runs that have begun cannot be resumed any more."""
        await (await self._ready()).remove(owner, name)

    async def close(self) -> None:
        """Let go of the store."""
        if self._open:
            self._open = False
            await self._store.close()

    def read(self, version: Version) -> D:
        """The definition that a version holds."""
        return msgspec.json.decode(version.body, type=self._kind)

    async def _version(self, owner: str, name: str) -> Version:
        return await (await self._ready()).get(owner, name)

    async def _ready(self) -> DefinitionStore:
        if not self._open:
            await self._store.open()
            self._open = True
        return self._store


class DefinitionSource(Generic[D]):
    """A definition as an App's agent: the newest version for new runs, for others the one they began with."""

    def __init__(self, collection: Collection[D], newest: Version) -> None:
        self._collection, self._newest = collection, newest
        self.definition = collection.read(newest)
        self.name = f"{newest.owner}/{newest.name}"
        self.description = self.definition.description
        self.model_tier = self.definition.model_tier
        #: Kept with every run: the version that it began with.
        self.agent_id = f"{self.name}@{newest.number}"

    async def build(self, info: RunInfo) -> Agent:
        """The agent of the version that this run began with.

        Raises:
            DefinitionsUnavailable: the version cannot be read now. The run is left, and goes on when it can.
        """
        _, _, number = (info.agent_id or self.agent_id).rpartition("@")
        try:
            definition = await self._collection.get(self._newest.owner, self._newest.name, int(number))
        except TablesUnavailable as exc:
            raise DefinitionsUnavailable(f"{self.name} cannot be read now: {exc}") from exc
        return self._collection.lower(definition)


def check_name(*parts: str) -> None:
    """An owner and a name stand together in an agent's name, so they have to be told apart in it.

    Raises:
        MalformedDefinition: one is empty, or has a character that separates them.
    """
    for part in parts:
        if not part or "/" in part or "@" in part:
            raise MalformedDefinition(f"{part!r} cannot be an owner or a name: it may not be empty, nor have / or @")
