"""The repository of definitions: saves versions, and reads and writes them as Markdown."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.batteries.definitions.store import (
    ALL_READERS,
    DefinitionStore,
    DefinitionsUnavailable,
    MalformedDefinition,
    Version,
)
from holdfast.clock import Clock
from holdfast.core.agents.agent import Agent
from holdfast.core.run.info import RunInfo
from holdfast.db.tables import TablesError


class Definition(Protocol):
    """The fields of every definition."""

    @property
    def owner(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def model_tier(self) -> str: ...


D = TypeVar("D", bound=Definition)


class DefinitionRepository(ABC, Generic[D]):
    """Stores, lists and shares definitions of one kind."""

    def __init__(self, kind: type[D], store: DefinitionStore, clock: Clock) -> None:
        self._kind, self._store, self._clock = kind, store, clock
        self._open = False
        #: The newest version of each definition that this process has saved or read.
        self._cache: dict[tuple[str, str], tuple[Version, D]] = {}

    @abstractmethod
    def build_agent(self, definition: D) -> Agent:
        """Build the agent that the definition describes.

        Raises:
            DefinitionError: it names a tool or a model tier that does not exist.
        """

    async def save(self, definition: D) -> int:
        """Store a new version and return its number. New runs use it; existing runs keep the version they have.

        Raises:
            HoldfastError: no agent can be built from it. Nothing was stored.
        """
        self.build_agent(definition)
        store = await self._ensure_open()
        body = msgspec.json.encode(definition)
        version = await store.save(definition.owner, definition.name, body, self._clock.now())
        self.cache_version(version)
        return version.number

    async def get(self, owner: str, name: str, version: int | None = None) -> D:
        """Return that version, or the newest."""
        stored = await (await self._ensure_open()).get(owner, name, version)
        return self.cache_version(stored) if version is None else self.decode(stored)

    async def newest(self, reader: str | None = None) -> Sequence[D]:
        """Return the newest version of each definition; with a reader, only of those it owns or may read."""
        return [self.cache_version(version) for version in await (await self._ensure_open()).newest(reader)]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Return every version, oldest first."""
        return await (await self._ensure_open()).history(owner, name)

    async def share(self, owner: str, name: str, reader: str = ALL_READERS) -> None:
        """Share a definition with another owner, or with all."""
        await (await self._ensure_open()).share(owner, name, reader)

    async def remove(self, owner: str, name: str) -> None:
        """Delete all versions. Runs that use one of them can no longer be resumed."""
        await (await self._ensure_open()).remove(owner, name)

    async def close(self) -> None:
        """Close the store. May be called again."""
        if self._open:
            self._open = False
            await self._store.close()

    def decode(self, version: Version) -> D:
        """Return the definition in a version."""
        return msgspec.json.decode(version.body, type=self._kind)

    def cache_version(self, version: Version) -> D:
        """Return the definition in a version. New runs use it if no newer one is cached."""
        definition, key = self.decode(version), (version.owner, version.name)
        if key not in self._cache or self._cache[key][0].number < version.number:
            self._cache[key] = version, definition
        return definition

    def get_cached(self, owner: str, name: str) -> tuple[Version, D]:
        """Return the newest version that this process has saved or read."""
        return self._cache[owner, name]

    async def _get_newest(self, owner: str, name: str) -> Version:
        return await (await self._ensure_open()).get(owner, name)

    async def _ensure_open(self) -> DefinitionStore:
        if not self._open:
            await self._store.open()
            self._open = True
        return self._store


class DefinitionSource(Generic[D]):
    """An App's agent that is built from a definition.

    A new run uses the newest version that the repository has saved or read, a resumed run the version it started
    with. `get`, `newest` and `source` read versions that another process has saved.
    """

    def __init__(self, repository: DefinitionRepository[D], newest: Version) -> None:
        repository.cache_version(newest)
        self._repository, self._owner, self._name = repository, newest.owner, newest.name
        self.name: str = f"{newest.owner}/{newest.name}"

    @property
    def definition(self) -> D:
        """The version that a new run uses."""
        return self._repository.get_cached(self._owner, self._name)[1]

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def model_tier(self) -> str:
        return self.definition.model_tier

    @property
    def agent_id(self) -> str:
        """Stored with a run: the name and the version it started with."""
        return f"{self.name}@{self._repository.get_cached(self._owner, self._name)[0].number}"

    async def build(self, info: RunInfo) -> Agent:
        """Build the agent from the version that this run started with.

        Raises:
            DefinitionsUnavailable: the version cannot be read now. The run is interrupted.
        """
        _, _, number = (info.agent_id or self.agent_id).rpartition("@")
        try:
            definition = await self._repository.get(self._owner, self._name, int(number))
        except TablesError as exc:  # a database error must not fail the run
            raise DefinitionsUnavailable(f"{self.name} cannot be read now: {exc}") from exc
        return self._repository.build_agent(definition)


def check_name(*parts: str) -> None:
    """Check an owner and a name: an agent id is `OWNER/NAME@VERSION`.

    Raises:
        MalformedDefinition: one is empty, or contains a separator.
    """
    for part in parts:
        if not part or "/" in part or "@" in part:
            raise MalformedDefinition(
                f"{part!r} cannot be an owner or a name: use at least one character, and no / or @"
            )


_FENCE = "---"

_T = TypeVar("_T")


def to_markdown(definition: msgspec.Struct, text_field: str) -> str:
    """Return the document: `text_field` as the body, all other fields as front matter."""
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    text = fields.pop(text_field)
    front = msgspec.yaml.encode(fields).decode()
    return f"{_FENCE}\n{front}{_FENCE}\n\n{text}\n"


def from_markdown(document: str, kind: type[_T], text_field: str) -> _T:
    """Parse a document into a definition of type `kind`.

    Raises:
        MalformedDefinition: it has no front matter, or a field is missing, unknown or of the wrong type.
    """
    document = document.removeprefix("\ufeff").lstrip()
    if document.startswith(f"{_FENCE}\r\n"):  # Windows line endings
        document = document.replace("\r\n", "\n")
    head, found, rest = document.partition(f"{_FENCE}\n")
    front, closed, text = rest.partition(f"\n{_FENCE}\n")
    if head or not found or not closed:
        raise MalformedDefinition(f"the document has no front matter: begin it with YAML between two lines of {_FENCE}")
    try:
        fields = msgspec.yaml.decode(front)
        if not isinstance(fields, dict):
            raise MalformedDefinition("the front matter is not a mapping: write one `name: value` per line")
        return msgspec.convert({**fields, text_field: text.strip("\n")}, kind)
    except msgspec.MsgspecError as exc:
        raise MalformedDefinition(f"the front matter is invalid: {exc}") from exc
