"""The repository of definitions: saves versions, and reads and writes them as Markdown."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from holdfast.batteries.definitions.versions import (
    ALL_READERS,
    DefinitionsUnavailable,
    MalformedDefinition,
    Version,
    VersionTable,
)
from holdfast.clock import CLOCK, Clock
from holdfast.core.agents.agent import Agent, ModelTiers
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RunInfo
from holdfast.db.tables import Tables, TablesError

log: logging.Logger = logging.getLogger("holdfast.definitions")

#: How often definitions that other processes have saved are read.
_REFRESH_INTERVAL = timedelta(seconds=30)


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of every definition."""

    owner: str
    name: str
    description: str = ""
    model_tier: str = ""
    #: Names of tools of the host.
    tools: list[str] = []

    def __post_init__(self) -> None:
        """Check the owner and the name: an agent id is `OWNER/NAME@VERSION`.

        Raises:
            MalformedDefinition: one is empty, or contains a separator.
        """
        for part in (self.owner, self.name):
            if not part or "/" in part or "@" in part:
                raise MalformedDefinition(
                    f"{part!r} cannot be an owner or a name: use at least one character, and no / or @"
                )


D = TypeVar("D", bound=Definition)


class DefinitionRepository(ABC, Generic[D]):
    """Stores, lists and shares definitions of one kind. An App finds the agent of each by its name, `OWNER/NAME`."""

    #: Names the kind of definition in the tables and in messages.
    kind: ClassVar[str]
    #: Raised if no agent can be built.
    error: ClassVar[type[DefinitionError]]
    definition_type: type[D]

    def __init__(
        self,
        tiers: ModelTiers,
        tools: Iterable[Tool] = (),
        *,
        tables: Tables | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create a repository.

        Args:
            tiers: the model of each model tier.
            tools: the tools that definitions may name.
            tables: keep the definitions. Default: in the store of the App, shared by all its processes.
        """
        self.tables, self._clock = tables, clock or CLOCK.get()
        self._tiers, self._tools = tiers, {tool.name: tool for tool in tools}
        self._versions = VersionTable(self.kind, tables)
        #: The newest version of each definition that this process has saved or read.
        self._cache: dict[tuple[str, str], tuple[Version, D]] = {}
        self._sources: dict[str, DefinitionSource[D]] = {}
        self._refresher: asyncio.Task[None] | None = None

    @abstractmethod
    def build_agent(self, definition: D) -> Agent:
        """Build the agent that the definition describes.

        Raises:
            DefinitionError: it names a tool or a model tier that does not exist.
        """

    @property
    def agents(self) -> Mapping[str, "DefinitionSource[D]"]:
        """The agents of all definitions that this process has saved or read, by name."""
        return self._sources

    async def open(self, tables: Tables) -> None:
        """Read all definitions: in `tables`, unless the repository was given others. Read them again every 30 s."""
        if self._refresher is None:
            self._refresher = asyncio.get_running_loop().create_task(self._refresh_periodically())
        await self._versions.open(tables)
        await self.newest()

    async def close(self) -> None:
        """Close the tables. May be called again."""
        if self._refresher is not None:
            self._refresher.cancel()
            self._refresher = None
        await self._versions.close()

    async def _refresh_periodically(self) -> None:
        while True:
            await self._clock.sleep(_REFRESH_INTERVAL)
            try:
                await self.newest()
            except TablesError as exc:
                log.warning("the %ss could not be read, will retry: %s", self.kind, exc)

    async def save(self, definition: D) -> int:
        """Store a new version and return its number. New runs use it; existing runs keep the version they have.

        Raises:
            HoldfastError: no agent can be built from it. Nothing was stored.
        """
        self.build_agent(definition)
        body = msgspec.json.encode(definition)
        version = await self._versions.save(definition.owner, definition.name, body, self._clock.now())
        self.cache_version(version)
        return version.number

    async def get(self, owner: str, name: str, version: int | None = None) -> D:
        """Return that version, or the newest."""
        stored = await self._versions.get(owner, name, version)
        return self.cache_version(stored) if version is None else self.decode(stored)

    async def newest(self, reader: str | None = None) -> Sequence[D]:
        """Return the newest version of each definition; with a reader, only of those it owns or may read."""
        return [self.cache_version(version) for version in await self._versions.newest(reader)]

    async def history(self, owner: str, name: str) -> Sequence[Version]:
        """Return every version, oldest first."""
        return await self._versions.history(owner, name)

    async def share(self, owner: str, name: str, reader: str = ALL_READERS) -> None:
        """Share a definition with another owner, or with all."""
        await self._versions.share(owner, name, reader)

    async def remove(self, owner: str, name: str) -> None:
        """Delete all versions. Runs that use one of them can no longer be resumed."""
        await self._versions.remove(owner, name)

    async def source(self, owner: str, name: str) -> "DefinitionSource[D]":
        """Return the newest version as an agent."""
        await self.get(owner, name)
        return self._sources[f"{owner}/{name}"]

    def find_tools(self, definition: D, names: Sequence[str]) -> list[Tool]:
        """Return the tools of these names.

        Raises:
            DefinitionError: there is none of this name.
        """
        unknown = [name for name in names if name not in self._tools]
        if unknown:
            known = ", ".join(sorted(self._tools)) or "none"
            raise self.error(
                f"{self.kind} {definition.owner}/{definition.name} names unknown tools {unknown}; known: {known}"
            )
        return [self._tools[name] for name in names]

    def decode(self, version: Version) -> D:
        """Return the definition in a version."""
        return msgspec.json.decode(version.body, type=self.definition_type)

    def cache_version(self, version: Version) -> D:
        """Return the definition in a version. New runs use it if no newer one is cached."""
        definition, key = self.decode(version), (version.owner, version.name)
        if key not in self._cache or self._cache[key][0].number < version.number:
            self._cache[key] = version, definition
        if (name := f"{version.owner}/{version.name}") not in self._sources:
            self._sources[name] = DefinitionSource(self, *key)
        return definition

    def get_cached(self, owner: str, name: str) -> tuple[Version, D]:
        """Return the newest version that this process has saved or read."""
        return self._cache[owner, name]


class DefinitionSource(Generic[D]):
    """An App's agent that is built from a definition.

    A new run uses the newest version that the repository has saved or read, a resumed run the version it started
    with.
    """

    def __init__(self, repository: DefinitionRepository[D], owner: str, name: str) -> None:
        self._repository, self._owner, self._name = repository, owner, name
        self.name: str = f"{owner}/{name}"

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
