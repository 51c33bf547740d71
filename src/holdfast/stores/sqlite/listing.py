"""Listings: pages of records, in the order of creation. Each page reads one index, whatever the filter."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus, make_damaged_record
from holdfast.checkpoint.workers import CountedRow
from holdfast.core.run.info import RunIndex
from holdfast.stores.sqlite.database import statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Execute, from_micros, to_micros

Direction = Literal["ASC", "DESC"]

_MIN, _MAX = -(2**63), 2**63 - 1
_CURSOR = re.compile(r"(-?\d{1,19}):(\d{1,19})")
#: If several indexes fit a filter, the one with fewest rows is used. Rows are counted up to this many.
_PROBE_ROWS = 2000

#: The stored statuses, in a fixed order.
_STATUSES = tuple(status for status in RunStatus if status is not RunStatus.REMOVED)
_UNOWNED = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.INTERRUPTED})


#: The texts among the columns of a record, by number.
_TEXTS = frozenset({1, 2, 3, 4, 5, 8, 12, 20, 21, 23, 24})


class Position(NamedTuple):
    """The place of a run in a listing."""

    created_at: int
    run_key: int

    def to_cursor(self) -> str:
        return f"{self.created_at}:{self.run_key}"


NEWEST, OLDEST = Position(_MAX, _MAX), Position(_MIN, _MIN)


def parse_cursor(cursor: str) -> Position:
    """Return the position that `Position.to_cursor` wrote."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or not cursor.isascii():
        raise InvalidCursor(cursor)
    position = Position(int(match[1]), int(match[2]))
    if not (_MIN <= position.created_at <= _MAX and position.run_key <= _MAX):
        raise InvalidCursor(cursor)
    return position


class _Source(NamedTuple):
    """An index that has the runs with one property in the order of creation."""

    #: What stands after FROM, and the table in it that has `created_at` and `run_key`.
    table: str
    k: str
    condition: str
    #: Whether the index has the status before the time.
    by_status: bool = True


_BY_STATUS = _Source("runs INDEXED BY runs_by_status", "runs", "")
_BY_AGENT = _Source("runs INDEXED BY runs_by_agent", "runs", "runs.agent_name = :agent")
_BY_CALLER = _Source("runs INDEXED BY runs_by_caller", "runs", "runs.caller_id = :caller")
#: The index has no runs without a tenant, so SQLite has to see that the query wants none.
_BY_TENANT = _Source("runs INDEXED BY runs_by_tenant", "runs", "runs.tenant = :tenant AND runs.tenant <> ''")
_BY_PARENT = _Source("runs INDEXED BY runs_by_parent", "runs", "runs.parent_run_id = :parent", by_status=False)


def _by_label(number: int) -> _Source:
    table = "labels INDEXED BY runs_by_label CROSS JOIN runs ON runs.run_key = labels.run_key"
    return _Source(table, "labels", f"labels.name = :name{number} AND labels.value = :value{number}")


def read_counts(now_micros: int, liveness: Liveness, execute: Execute) -> list[CountedRow]:
    """Return the number of runs by agent, status and owner."""
    alive = liveness.alive_workers(execute)
    query = statement("count_runs")
    try:
        rows = execute(query, (now_micros,)).fetchall()
    except UnicodeDecodeError:  # the name of an agent is damaged
        query = query.replace("SELECT agent_name,", "SELECT CAST(agent_name AS BLOB),")
        rows = [(row[0].decode(errors="replace"), *row[1:]) for row in execute(query, (now_micros,)).fetchall()]
    return [
        CountedRow(
            agent, RunStatus(status), owner in alive, count, due, None if oldest is None else from_micros(oldest)
        )
        for agent, status, owner, count, due, oldest in rows
    ]


def read_page(
    filter: RunFilter, position: Position, direction: Direction, limit: int, liveness: Liveness, execute: Execute
) -> tuple[list[RunRecord], Position | None]:
    """Return up to `limit` records behind `position`, and the position to continue from; `None` after the last."""
    alive = liveness.alive_workers(execute)
    statuses = _select_statuses(filter)
    bindings = _make_bindings(filter, position, direction, limit, alive)
    source = _choose_source(filter, bindings, execute)
    conditions = _make_conditions(filter, source)
    rows = _read_rows(_build_query(source, conditions, statuses, direction), bindings, execute) if statuses else []
    records = [_make_listed_record(row, alive) for row in rows[:limit]]
    if len(rows) <= limit:
        return records, None
    return records, Position(rows[limit - 1][6], rows[limit - 1][0]) if limit else position


def _read_rows(query: str, bindings: dict[str, Any], execute: Execute) -> Sequence[Sequence[Any]]:
    """Return the rows of a page. Texts that are no UTF-8 are bytes in their row."""
    try:
        rows: list[Sequence[Any]] = execute(query, bindings).fetchall()
    except UnicodeDecodeError:
        rows = [_decode_texts(row) for row in execute(_cast_texts(query), bindings).fetchall()]
    return rows


@cache
def _cast_texts(query: str) -> str:
    columns = [column.strip() for column in statement("record_columns").split(",")]
    cast = [f"CAST({column} AS BLOB)" if number in _TEXTS else column for number, column in enumerate(columns)]
    return query.replace(statement("record_columns"), ", ".join(cast))


def _decode_texts(row: Sequence[Any]) -> Sequence[Any]:
    values = list(row)
    for number in _TEXTS:
        if values[number] is not None:
            with suppress(UnicodeDecodeError):
                values[number] = values[number].decode()
    return values


def _make_listed_record(row: Sequence[Any], alive: frozenset[str]) -> RunRecord:
    """Make a record. A damaged row is shown as a parked run: the others of its page can be read."""
    try:
        for number in _TEXTS:
            if isinstance(row[number], bytes):
                raise ValueError("a text is not UTF-8")
        return make_record(row, row[8] in alive)
    except (ValueError, OverflowError, TypeError) as exc:
        run_id, agent_name, caller_id, tenant = (
            value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            for value in (row[1], row[2], row[3], row[24])
        )
        index = RunIndex(run_id=run_id, agent_name=agent_name, caller_id=caller_id, tenant=tenant)
        return make_damaged_record(index, from_micros(row[6]), exc)


def _select_statuses(filter: RunFilter) -> tuple[RunStatus, ...]:
    wanted = frozenset(_STATUSES) if filter.statuses is None else filter.statuses
    if filter.interrupted:
        wanted &= _UNOWNED
    return tuple(status for status in _STATUSES if status in wanted)


def _make_bindings(
    filter: RunFilter, position: Position, direction: Direction, limit: int, alive: frozenset[str]
) -> dict[str, Any]:
    after = _MIN if filter.created_after is None else to_micros(filter.created_after)
    before = _MAX if filter.created_before is None else to_micros(filter.created_before)
    # One bound at each end: SQLite would seek with either of two.
    if direction == "DESC":
        position = min(position, Position(before, _MIN))
    else:
        position = max(position, Position(after - 1, _MAX)) if after > _MIN else position
    bindings: dict[str, Any] = {
        "created": position.created_at,
        "key": position.run_key,
        "end": after if direction == "DESC" else before,
        "limit": limit + 1,
        "probe": _PROBE_ROWS,
        "agent": filter.agent_name,
        "caller": filter.caller_id,
        "parent": filter.parent_run_id,
        "tenant": filter.tenant,
        "alive": json.dumps(sorted(alive)),
    }
    for number, (name, value) in enumerate(sorted(filter.labels.items())):
        bindings[f"name{number}"], bindings[f"value{number}"] = name, value
    return bindings


def _list_sources(filter: RunFilter) -> list[_Source]:
    sources = [_by_label(number) for number in range(len(filter.labels))]
    given = ((filter.parent_run_id, _BY_PARENT), (filter.caller_id, _BY_CALLER), (filter.agent_name, _BY_AGENT))
    sources += [source for value, source in given if value is not None]
    return [*sources, _BY_TENANT] if filter.tenant else sources


def _choose_source(filter: RunFilter, bindings: dict[str, Any], execute: Execute) -> _Source:
    sources = _list_sources(filter)
    if len(sources) < 2:
        return sources[0] if sources else _BY_STATUS

    def count(source: _Source) -> int:
        rows: int = execute(_build_probe(source), bindings).get
        return rows

    return min(sources, key=count)


def _make_conditions(filter: RunFilter, source: _Source) -> tuple[str, ...]:
    """Return what the index does not check by its own columns."""
    conditions = [source.condition] if source.condition else []
    for other in _list_sources(filter):
        if other.condition == source.condition:
            continue
        if other.k == "labels":
            condition = other.condition.replace("labels.", "other.")
            conditions.append(statement("has_label").replace("{k}", source.k).replace("{condition}", condition))
        else:
            conditions.append(other.condition)
    if filter.tenant == "":
        conditions.append("runs.tenant = ''")
    if filter.interrupted:
        conditions.append("(runs.status <> 'running' OR runs.owner NOT IN (SELECT value FROM json_each(:alive)))")
    return tuple(conditions)


@cache
def _build_probe(source: _Source) -> str:
    # Without the join: it would read each run.
    table = source.table.partition(" CROSS JOIN ")[0]
    return statement("probe_source").replace("{source}", table).replace("{conditions}", source.condition)


@cache
def _build_query(
    source: _Source, conditions: tuple[str, ...], statuses: tuple[RunStatus, ...], direction: Direction
) -> str:
    k, names = source.k, [f"'{status.value}'" for status in statuses]
    if source.by_status:
        choices = [f"{k}.status = {name}" for name in names]
    else:
        choices = [f"{k}.status IN ({', '.join(names)})"]
    bounds = (
        f"({k}.created_at, {k}.run_key) {'<' if direction == 'DESC' else '>'} (:created, :key)",
        f"{k}.created_at {'>=' if direction == 'DESC' else '<'} :end",
    )
    branches = [
        statement("list_branch")
        .replace("{k}", k)
        .replace("{source}", source.table)
        .replace("{conditions}", " AND ".join((*conditions, choice, *bounds)))
        for choice in choices
    ]
    query = statement("list_page").replace("{branches}", " UNION ALL ".join(branches))
    return query.replace("{direction}", direction)


def make_record(row: Sequence[Any], owner_alive: bool) -> RunRecord:
    """Make a record from a row of the columns `{record_columns}`."""
    status = RunStatus(row[5])
    return RunRecord(
        run_id=row[1],
        agent_name=row[2],
        caller_id=row[3],
        parent_run_id=row[4],
        status=status,
        created_at=from_micros(row[6]),
        updated_at=from_micros(row[7]),
        owner=row[8],
        owner_alive=owner_alive and status is RunStatus.RUNNING,
        token=row[9],
        strikes=row[10],
        not_before=from_micros(row[11]),
        reason=row[12],
        cancel_requested=bool(row[13]),
        expires_at=None if row[14] is None else from_micros(row[14]),
        next_seq=row[15],
        size=row[16],
        info=row[17],
        progress=row[18],
        wake_at=None if row[19] is None else from_micros(row[19]),
        wake_on=() if row[20] == "[]" else tuple(json.loads(row[20])),
        labels={} if row[21] == "{}" else json.loads(row[21]),
        priority=row[22],
        concurrency_key=row[23],
        tenant=row[24],
        background=bool(row[25]),
    )
