"""What a database offers of what the store needs, tried out."""

import asyncio
import re
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import apsw
import msgspec

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import RunStore, SupportsHealthCheck
from holdfast.testing.store_check.scratch_stores import Scratch, ScratchSchema

if TYPE_CHECKING:
    from holdfast.db.postgres_connection import PgConnection
    from holdfast.stores.postgres.database import Database

_TIMEOUT = timedelta(seconds=30)
_OLDEST = 14


class ServerFeature(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a database offers, or lacks."""

    name: str
    present: bool
    #: Whether the store cannot work without it.
    required: bool
    detail: str

    @property
    def is_fatal(self) -> bool:
        return self.required and not self.present


class _Trial(NamedTuple):
    """Statements that a server with the feature accepts. `SCHEMA` stands for the schema of the check."""

    name: str
    statement: str
    #: What it is used for.
    use: str
    #: What its lack means.
    lack: str
    #: Whether it needs the schema.
    in_schema: bool = False


_OWN_SCHEMA = _Trial(
    "own schema",
    'create schema "SCHEMA"',
    "the role may create a schema in this database",
    "the check needs a schema of its own: use a role with the right CREATE on the database",
)
_TRIALS = (
    _OWN_SCHEMA,
    _Trial(
        "PL/pgSQL",
        "do language plpgsql $$ begin perform 1; end $$",
        "the writes of the store are functions in PL/pgSQL",
        "the store cannot be opened: its writes are functions in PL/pgSQL",
    ),
    _Trial(
        "advisory locks",
        "select pg_advisory_xact_lock(hashtextextended('holdfast:SCHEMA', 0))",
        "migrations, and transactions of batteries with a common name, run one after the other",
        "the tables cannot be created, and batteries cannot write: both take advisory locks of a transaction",
    ),
    _Trial(
        "SKIP LOCKED",
        'create table "SCHEMA".trial (id integer); select id from "SCHEMA".trial for update skip locked;'
        ' drop table "SCHEMA".trial',
        "workers claim runs beside each other",
        "workers cannot claim runs beside each other",
        in_schema=True,
    ),
)


async def find_features(scratch: Scratch) -> list[ServerFeature]:
    """Return what the database offers and lacks. Creates the schema of the check.

    Raises:
        StoreError: the database cannot be reached.
    """
    features = await _try_server(scratch) if isinstance(scratch, ScratchSchema) else [_describe_sqlite()]
    if any(feature.is_fatal for feature in features):
        return features
    location = scratch.make_location()
    store = scratch.build(location)
    try:
        await store.open()
    except StoreError as exc:
        return [*features, ServerFeature(name="tables", present=False, required=True, detail=str(exc))]
    try:
        return [*features, *await _look_at(store)]
    finally:
        await store.close()


async def _look_at(store: RunStore) -> list[ServerFeature]:
    """Return what an open store knows about its database."""
    found = [ServerFeature(name="tables", present=True, required=True, detail="the store can be opened")]
    if hasattr(store, "is_listening"):
        await asyncio.sleep(0 if store.is_listening else 3)  # seconds: a notification may come late
        listening = store.is_listening
        polling = "no notification arrives: workers poll every second. Give the store a direct address as `listen_url`"
        detail = "workers are notified of new runs, mail and cancels" if listening else polling
        found.append(ServerFeature(name="LISTEN", present=listening, required=False, detail=detail))
    if isinstance(store, SupportsHealthCheck):
        warnings = (await store.check_health()).warnings
        detail = "; ".join(warnings) or "no setting of the database hurts the store"
        found.append(ServerFeature(name="settings", present=not warnings, required=False, detail=detail))
    return found


def _describe_sqlite() -> ServerFeature:
    return ServerFeature(name="version", present=True, required=True, detail=f"SQLite {apsw.sqlite_lib_version()}")


async def _try_server(scratch: ScratchSchema) -> list[ServerFeature]:
    from holdfast.stores.postgres.database import Database, SqlFiles

    database = Database(scratch.url, SqlFiles(scratch.name), _TIMEOUT)
    connection = await database.run(partial(_connect, database))
    try:
        features = [_check_version(connection), _check_encoding(connection)]
        has_schema = True
        for trial in _TRIALS:
            if not has_schema and trial.in_schema:
                continue
            deadline = asyncio.get_running_loop().time() + database.timeout_s
            feature = await _try_feature(trial, connection, scratch.name, deadline)
            has_schema = has_schema and (feature.present or trial is not _OWN_SCHEMA)
            features.append(feature)
    finally:
        connection.close()
    return features


async def _connect(database: "Database", deadline: float) -> "PgConnection":
    return await database.connect(deadline=deadline)


async def _try_feature(trial: _Trial, connection: "PgConnection", schema: str, deadline: float) -> ServerFeature:
    import psycopg

    try:
        await connection.execute(trial.statement.replace("SCHEMA", schema), deadline=deadline)
    except psycopg.Error as exc:
        reason = " ".join(str(exc).split())
        return ServerFeature(name=trial.name, present=False, required=True, detail=f"{trial.lack} ({reason})")
    return ServerFeature(name=trial.name, present=True, required=True, detail=trial.use)


def _check_version(connection: "PgConnection") -> ServerFeature:
    version = connection.get_parameter("server_version")
    major = re.match(r"\d+", version)
    is_supported = major is not None and int(major[0]) >= _OLDEST
    detail = version if is_supported else f"{version}: the store needs PostgreSQL {_OLDEST} or newer"
    return ServerFeature(name="version", present=is_supported, required=True, detail=detail)


def _check_encoding(connection: "PgConnection") -> ServerFeature:
    encoding = connection.get_parameter("server_encoding")
    is_utf8 = encoding == "UTF8"
    detail = "the database stores UTF-8" if is_utf8 else f"the database stores {encoding}: create it with UTF8"
    return ServerFeature(name="UTF-8", present=is_utf8, required=True, detail=detail)
