"""After a crash and a recovery the store holds nothing of the run, and nothing of the workers that drove it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.crash import agents
from tests.crash.trial_stores import TrialStore

from holdfast.testing import crash_everywhere


def _rows_in_sqlite(folder: Path) -> dict[str, int]:
    connection = apsw.Connection(str(folder / "runs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    return {table: connection.execute(f"select count(*) from {table}").get for table in ("runs", "workers")}


def _rows_in_postgres(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return {
            table: connection.execute(f"select count(*) from holdfast.{table}".encode()).fetchall()[0][0]
            # Rows of dead workers are small and go after some days: from another host nobody can tell sooner.
            for table in ("run",)
        }


@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
def test_nothing_is_left(place: TrialStore, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["place"]
    seen: list[dict[str, int]] = []

    @contextlib.contextmanager
    def watched(folder: Path) -> Iterator[str]:
        with place(folder) as url:
            yield url
            seen.append(_rows_in_postgres(url) if kind == "postgres" else _rows_in_sqlite(folder))

    crash_everywhere(agents.parent, "Porto", store=watched, sample=6)
    assert len(seen) == 8
    assert all(not any(rows.values()) for rows in seen), seen
