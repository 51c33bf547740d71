"""A collection of definitions of one kind, typed."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.batteries.definitions.store import (
    EVERYBODY,
    DefinitionStore,
    DefinitionsUnavailable,
    MalformedDefinition,
    Version,
)
from holdfast.clock import Clock
from holdfast.core.agent import Agent
from holdfast.core.info import RunInfo
from holdfast.db.errors import TablesError


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


class DefinitionRepository(Generic[D]):
    """Keeps, shows and shares definitions of one kind."""

    def __init__(self, kind: type[D], build_agent: Callable[[D], Agent], store: DefinitionStore, clock: Clock) -> None:
        """Make a collection.

        Args:
            lower: makes the agent that a definition describes, or raises what says what it lacks.
        """
        self._kind, self._store, self._clock = kind, store, clock
        self.build_agent = build_agent
        self._open = False
        #: The newest version of each that was saved or read here.
        self._cache: dict[tuple[str, str], tuple[Version, D]] = {}

    async def save(self, definition: D) -> int:
        """Keep the definition as it is now. Returns its new version, for new runs; those that have begun keep theirs.

        Raises:
            HoldfastError: it cannot be lowered as it is. Nothing was kept.
        """
        self.build_agent(definition)
        store = await self._ensure_open()
        body = msgspec.json.encode(definition)
        version = await store.save(definition.owner, definition.name, body, self._clock.now())
        self.cache_version(version)
        return version.number

    async def get(self, owner: str, name: str, version: int | None = None) -> D:
        """That version, or the newest."""
        found = await (await self._ensure_open()).get(owner, name, version)
        return self.cache_version(found) if version is None else self.decode(found)

    async def newest(self, reader: str | None = None) -> Sequence[D]:
        """The newest version of each; with a reader, of those it owns or that are shared with it."""
        return [self.cache_version(version) for version in await (await self._ensure_open()).newest(reader)]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Every version, oldest first."""
        return await (await self._ensure_open()).history(owner, name)

    async def share(self, owner: str, name: str, reader: str = EVERYBODY) -> None:
        """Let another owner see it, or everybody."""
        await (await self._ensure_open()).share(owner, name, reader)

    async def remove(self, owner: str, name: str) -> None:
        """Forget all versions. Runs that have begun cannot be resumed any more."""
        await (await self._ensure_open()).remove(owner, name)

    async def close(self) -> None:
        """Let go of the store."""
        if self._open:
            self._open = False
            await self._store.close()

    def decode(self, version: Version) -> D:
        """The definition that a version holds."""
        return msgspec.json.decode(version.body, type=self._kind)

    def cache_version(self, version: Version) -> D:
        """The definition that a version holds. If it is the newest seen here, new runs take it."""
        definition, key = self.decode(version), (version.owner, version.name)
        if key not in self._cache or self._cache[key][0].number < version.number:
            self._cache[key] = version, definition
        return definition

    def get_cached(self, owner: str, name: str) -> tuple[Version, D]:
        """The newest version of a definition that was saved or read here."""
        return self._cache[owner, name]

    async def _get_newest(self, owner: str, name: str) -> Version:
        return await (await self._ensure_open()).get(owner, name)

    async def _ensure_open(self) -> DefinitionStore:
        if not self._open:
            await self._store.open()
            self._open = True
        return self._store


class DefinitionSource(Generic[D]):
    """A definition as an App's agent.

    A new run takes the newest version that the collection has saved or read, others the one they began with. What
    another process has saved is known here once it was read: by `get`, `newest` or `source`.
    """

    def __init__(self, repository: DefinitionRepository[D], newest: Version) -> None:
        repository.cache_version(newest)
        self._repository, self._owner, self._name = repository, newest.owner, newest.name
        self.name = f"{newest.owner}/{newest.name}"

    @property
    def definition(self) -> D:
        """What a new run takes."""
        return self._repository.get_cached(self._owner, self._name)[1]

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def model_tier(self) -> str:
        return self.definition.model_tier

    @property
    def agent_id(self) -> str:
        """Kept with every run: the version that it began with."""
        return f"{self.name}@{self._repository.get_cached(self._owner, self._name)[0].number}"

    async def build(self, info: RunInfo) -> Agent:
        """The agent of the version that this run began with.

        Raises:
            DefinitionsUnavailable: the version cannot be read now. The run is left, and goes on when it can.
        """
        _, _, number = (info.agent_id or self.agent_id).rpartition("@")
        try:
            definition = await self._repository.get(self._owner, self._name, int(number))
        except TablesError as exc:  # trouble with the tables must never become the run's result
            raise DefinitionsUnavailable(f"{self.name} cannot be read now: {exc}") from exc
        return self._repository.build_agent(definition)


def check_name(*parts: str) -> None:
    """An owner and a name stand together in an agent's name, so they have to be told apart in it.

    Raises:
        MalformedDefinition: one is empty, or has a character that separates them.
    """
    for part in parts:
        if not part or "/" in part or "@" in part:
            raise MalformedDefinition(f"{part!r} cannot be an owner or a name: it may not be empty, nor have / or @")
