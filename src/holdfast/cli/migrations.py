"""All tables in the database of a store: the store's own, and those of each battery."""

from collections.abc import Sequence

import msgspec

from holdfast.batteries.audit.tables import SCHEMA as AUDIT
from holdfast.batteries.budget.tables import SCHEMA as BUDGET
from holdfast.batteries.definitions.tables import SCHEMA as DEFINITIONS
from holdfast.batteries.limits.windows import SCHEMA as LIMITS
from holdfast.batteries.schedule.tables import SCHEMA as SCHEDULE
from holdfast.checkpoint.store import SupportsMigration
from holdfast.cli.errors import CommandError
from holdfast.cli.stores import make_store, resolve_store_url
from holdfast.db.tables import Schema
from holdfast.db.url import POSTGRES_SCHEMES, redact_url, tables_from_url

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
    if not isinstance(store, SupportsMigration):
        raise CommandError(f"{redact_url(url)} has no tables to migrate: name a sqlite: or postgresql: store")
    version = await store.read_schema_version()
    versions = [TablesVersion(tables="runs", found=version.found, known=version.known)]
    tables = tables_from_url(url)
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
    await store.close()
    tables = tables_from_url(url)
    try:
        for schema in _list_schemas(url, langgraph=langgraph):
            await tables.open(schema)
    finally:
        await tables.close()


def _list_schemas(url: str, *, langgraph: bool) -> list[Schema]:
    if not langgraph:
        return list(BATTERIES)
    try:
        from holdfast.adapters.langgraph.saver.schema import make_schema
    except ModuleNotFoundError as exc:
        raise CommandError(f'--langgraph needs {exc.name}: pip install "holdfast[langgraph]"') from exc
    return [*BATTERIES, make_schema(postgres=url.partition(":")[0] in POSTGRES_SCHEMES)]
