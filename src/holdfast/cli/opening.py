"""Opens the store of a command, and migrates its tables."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from holdfast.batteries.audit.audit_rows import SCHEMA as AUDIT
from holdfast.batteries.budget.ledger import SCHEMA as BUDGET
from holdfast.batteries.definitions.versions import SCHEMA as DEFINITIONS
from holdfast.batteries.rate_limits.windows import SCHEMA as LIMITS
from holdfast.batteries.schedule.jobs import SCHEMA as SCHEDULE
from holdfast.checkpoint.store import RunStore, SupportsHealthCheck
from holdfast.cli.output import CommandError, print_diagnostic
from holdfast.core.agents.agent import AgentSource
from holdfast.db.tables import Schema
from holdfast.db.urls import POSTGRES_SCHEMES, parse_sqlite_path, redact_url
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.operations.verdicts import SCHEMA as VERDICTS
from holdfast.stores.from_url import DEFAULT_URL, store_from_url

#: Report a store that takes longer than this to open.
_SLOW_OPEN_SECONDS = 3.0


def resolve_store_url(given: str) -> str:
    """Return the URL of `--store`, or the default."""
    return given or os.environ.get("HOLDFAST_STORE") or DEFAULT_URL


def make_store(given: str, *, create: bool = False) -> RunStore:
    """Return the store, not open.

    Args:
        create: permit a SQLite file that does not exist yet.

    Raises:
        CommandError: the SQLite file does not exist, or a dependency is not installed.
        StoreError: the URL is not valid.
    """
    url = resolve_store_url(given)
    scheme, _, _ = url.partition(":")
    try:
        store = store_from_url(url)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("holdfast"):
            raise
        raise CommandError(f'{scheme}: needs {exc.name}, which is not installed: pip install "holdfast[all]"') from exc
    path = Path(parse_sqlite_path(url)) if scheme == "sqlite" else None
    if not create and path is not None and not path.exists():
        raise CommandError(f"there is no store at {path}: name another with --store, or create one with run or submit")
    return store


@contextmanager
def report_slow_open() -> Iterator[None]:
    """Print a diagnostic if the store does not open within some seconds."""
    timer = asyncio.get_running_loop().call_later(
        _SLOW_OPEN_SECONDS, print_diagnostic, "waiting for the store to answer ..."
    )
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def open_client(
    given: str, agents: Mapping[str, AgentSource] | None = None, *, create: bool = False
) -> AsyncIterator[RunClient]:
    """Open a client of the store, and close it at the end."""
    async with AsyncExitStack() as stack:
        with report_slow_open():
            client = await stack.enter_async_context(RunClient.open(make_store(given, create=create), agents))
        yield client


@asynccontextmanager
async def open_store(given: str, *, create: bool = False) -> AsyncIterator[RunStore]:
    """Open the store and close it at the end."""
    async with open_client(given, create=create) as client:
        yield client.open_store


#: A new battery with tables needs one word here.
BATTERIES: Sequence[Schema] = (AUDIT, BUDGET, DEFINITIONS, LIMITS, SCHEDULE)


class TablesVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the store's tables (`runs`), or of those of a battery."""

    tables: str
    #: Zero if there are none.
    found: int
    known: int


async def read_versions(store_url: str, *, langgraph: bool = False) -> list[TablesVersion]:
    """Read the version of all tables. Changes nothing.

    Raises:
        CommandError: the store has no tables.
        SchemaTooNew, TablesError: a newer holdfast made them, or the database cannot be read.
    """
    url = resolve_store_url(store_url)
    store = make_store(url, create=True)
    if not isinstance(store, SupportsHealthCheck):
        raise CommandError(f"{redact_url(url)} has no tables to migrate: name a sqlite: or postgresql: store")
    health = await store.check_health(quick=True)
    versions = [TablesVersion(tables="runs", found=health.version, known=health.known_version)]
    tables = store.tables()
    try:
        for schema in _list_schemas(url, langgraph=langgraph):
            found = await tables.read_version(schema)
            versions.append(TablesVersion(tables=schema.name, found=found, known=len(schema.migrations)))
    finally:
        await tables.close()
    return versions


async def migrate_all(store_url: str, *, langgraph: bool = False) -> None:
    """Create or migrate all tables. Other processes may use them meanwhile.

    Raises:
        SchemaTooOld, TablesError: the user may not change the tables.
    """
    url = resolve_store_url(store_url)
    store = make_store(url, create=True)
    await store.open()
    try:
        for schema in _list_schemas(url, langgraph=langgraph):
            await store.tables().open(schema)
    finally:
        await store.close()


def _list_schemas(url: str, *, langgraph: bool) -> list[Schema]:
    if not langgraph:
        return [*BATTERIES, VERDICTS]
    try:
        from holdfast.adapters.langgraph.saver.saver_schema import make_schema
    except ModuleNotFoundError as exc:
        raise CommandError(f'--langgraph needs {exc.name}: pip install "holdfast[langgraph]"') from exc
    return [*BATTERIES, VERDICTS, make_schema(postgres=url.partition(":")[0] in POSTGRES_SCHEMES)]
