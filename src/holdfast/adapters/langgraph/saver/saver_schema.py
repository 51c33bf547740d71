"""The tables of the LangGraph checkpointer, and inserts of many rows with one statement."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.db.tables import Cursor, Schema

CHECKPOINT, VALUE, ITEM, WRITE = "langgraph_checkpoint", "langgraph_value", "langgraph_item", "langgraph_write"
TABLES = (CHECKPOINT, VALUE, ITEM, WRITE)

#: The primary key comes first. The body of a checkpoint has its metadata, and no channel values.
COLUMNS = {
    CHECKPOINT: ("thread_id", "ns", "checkpoint_id", "parent_id", "run_id", "type", "body"),
    # A channel's value at one version. A list is stored as references to its items, which are rows of their own.
    VALUE: ("thread_id", "ns", "channel", "version", "type", "body"),
    ITEM: ("thread_id", "ns", "channel", "stream", "number", "type", "body"),
    WRITE: ("thread_id", "ns", "checkpoint_id", "task_id", "idx", "task_path", "channel", "type", "body"),
}
KEY_LENGTHS = {CHECKPOINT: 3, VALUE: 4, ITEM: 5, WRITE: 5}

_TYPES = {"stream": "BIGINT", "number": "BIGINT", "idx": "INTEGER", "body": "BYTEA"}
_NULLABLE = ("parent_id", "run_id")

#: SQLite takes at most 32,766 parameters in one statement.
_MAX_PARAMETERS = 9_000

Row = tuple[Any, ...]


def make_schema(*, postgres: bool) -> Schema:
    """Return the schema. Ids are compared byte by byte in both databases.

    In SQLite new rows go to the end of their table. Ordered by thread (WITHOUT ROWID) each thread has its own pages:
    128 threads of 10 steps with 2 KB write 96 MB instead of 15.
    """
    text = 'TEXT COLLATE "C"' if postgres else "TEXT"
    statements = []
    for table, columns in COLUMNS.items():
        definitions = [f"{name} {_TYPES.get(name, text)}{'' if name in _NULLABLE else ' NOT NULL'}" for name in columns]
        key = ", ".join(columns[: KEY_LENGTHS[table]])
        statements.append(f"CREATE TABLE {table} ({', '.join(definitions)}, PRIMARY KEY ({key}))")
    statements.append(f"CREATE INDEX langgraph_checkpoint_run ON {CHECKPOINT} (run_id) WHERE run_id IS NOT NULL")
    return Schema(name="langgraph", migrations=[statements])


def split_row(table: str, row: Row) -> tuple[Row, Row]:
    """Return the primary key of a row and its other columns."""
    length = KEY_LENGTHS[table]
    return row[:length], row[length:]


async def insert_rows(cursor: Cursor, table: str, rows: Mapping[Row, Row], *, replace: bool) -> set[Row]:
    """Insert rows, given as key and other columns. Return the keys of those that were written.

    Args:
        replace: whether a row takes the place of an earlier one with the same key. If not, the earlier one stays.
    """
    columns = COLUMNS[table]
    keys, others = columns[: KEY_LENGTHS[table]], columns[KEY_LENGTHS[table] :]
    update = f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}" if replace else "NOTHING"
    row_sql = f"({', '.join('?' * len(columns))})"
    written: set[Row] = set()
    for batch in batched([*rows.items()], _MAX_PARAMETERS // len(columns)):
        sql = (
            f"INSERT INTO {table} VALUES {', '.join([row_sql] * len(batch))} "
            f"ON CONFLICT ({', '.join(keys)}) DO {update} RETURNING {', '.join(keys)}"
        )
        parameters = [*chain.from_iterable(key + other for key, other in batch)]
        written.update(map(tuple, await cursor.execute(sql, parameters)))
    return written


async def select_in(
    cursor: Cursor, select: str, parameters: Sequence[Any], columns: Sequence[str], keys: Sequence[Row]
) -> list[Row]:
    """Run `select`, which ends with a condition, for the rows whose `columns` are one of `keys`."""
    names = f"({', '.join(columns)})"
    found: list[Row] = []
    for batch in batched(keys, _MAX_PARAMETERS // len(columns)):
        places = ", ".join([f"({', '.join('?' * len(columns))})"] * len(batch))
        sql = f"{select} AND {names} IN (VALUES {places})"
        found += await cursor.execute(sql, [*parameters, *chain.from_iterable(batch)])
    return found


def batched(rows: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yield the rows in lists of at most `size`."""
    iterator = iter(rows)
    while batch := list(islice(iterator, size)):
        yield batch
