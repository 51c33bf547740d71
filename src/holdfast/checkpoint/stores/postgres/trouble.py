"""What the driver's errors mean to a caller. None of them leaves this package."""

import re

import psycopg
from psycopg import errors

from holdfast.checkpoint.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable

#: The server gave up this transaction for the sake of others: nothing of it was done, and it may be tried again.
_TRY_AGAIN = ("40001", "40P01", "55P03")
#: There is no server to talk to right now, or it has no room for another connection, or it is one that only reads: in a
#: failover an address may lead to a standby for a moment, and the connection that was made then is of no use.
_NO_SERVER = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "25006")
_DENIED = ("28", "42501")
_FULL = ("53100", "53400")
_TIMED_OUT = ("57014", "25P03", "25P04")
#: The schema is not what this code created.
_MISSING = ("3F000", "42P01", "42883", "42703")

# libpq tells no code for why it could not connect. Where the server says it in another language, it is waited for.
_KEPT_OUT = re.compile(r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist")
_NO_DATABASE = re.compile(r"database .* does not exist")


def connection_is_lost(exc: psycopg.Error) -> bool:
    """Whether the connection is gone: what was under way on it may be done or not."""
    if exc.sqlstate is None:
        permanent = _KEPT_OUT.search(str(exc)) or _NO_DATABASE.search(str(exc))
        return isinstance(exc, psycopg.OperationalError) and not permanent
    return exc.sqlstate.startswith(_NO_SERVER)


def passes(exc: psycopg.Error) -> bool:
    """Whether the same statement may well succeed in a moment."""
    return connection_is_lost(exc) or (exc.sqlstate is not None and exc.sqlstate.startswith(_TRY_AGAIN))


def only_reads(exc: psycopg.Error) -> bool:
    """Whether the server takes no write at all."""
    return exc.sqlstate == "25006"


def is_about_one_item(exc: psycopg.Error) -> bool:
    """Whether it is what was sent that the server refused, rather than the sender or the moment."""
    return exc.sqlstate is not None and exc.sqlstate.startswith(("22", "23", "54", "XX", "P0"))


def translated(exc: psycopg.Error, where: str) -> StoreError:
    """The error of holdfast's tree for it. `where` names the database, without its password."""
    state, said = exc.sqlstate or "", str(exc).strip() or type(exc).__name__
    if state.startswith(_FULL):
        return StoreFull(f"{where} has no room left: free space and save again ({said})")
    if state.startswith(_DENIED) or _KEPT_OUT.search(said):
        return StoreDenied(f"{where} refused: check the user, its password and its rights ({said})")
    if state.startswith(_MISSING):
        return StoreError(f"{where} lacks what the store created there; was its schema dropped or changed? ({said})")
    if state.startswith(_TIMED_OUT):
        return StoreUnavailable(f"{where} cut the call short by a timeout of its own ({said})")
    if passes(exc):
        return StoreUnavailable(f"{where} did not answer: the same call may succeed later ({said})")
    return StoreError(f"{where} failed: {said}")


def reported(sqlstate: str | None, said: str) -> psycopg.Error:
    """The driver's error for one that the server reported, or libpq itself, which knows no codes."""
    if sqlstate is None:
        return psycopg.OperationalError(said)
    try:
        return errors.lookup(sqlstate)(said)
    except KeyError:
        return psycopg.DatabaseError(said)
