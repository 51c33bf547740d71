"""After a crash, a recovery and a purge the tables hold no row of a run that is not kept, or of its workers."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.testing.crash import agents
from tests.testing.crash.trial_stores import TrialStore

from holdfast.cli.opening import open_store
from holdfast.testing import crash_everywhere


def _rows_in_sqlite(folder: Path) -> dict[str, int]:
    connection = apsw.Connection(str(folder / "runs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    return {table: connection.execute(f"select count(*) from {table}").get for table in ("runs", "workers")}


def _rows_in_postgres(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return {
            table: connection.execute(f"select count(*) from holdfast.{table}".encode()).fetchall()[0][0]
            # Rows of dead workers stay for some days, because another host cannot know earlier that they are dead.
            for table in ("run",)
        }


async def _purge(url: str) -> None:
    """Remove runs whose owner was killed after it had ended them and before it had removed them."""
    async with open_store(url) as store:
        await store.purge()


@pytest.mark.parametrize("trial_store", ["sqlite", "postgres"], indirect=True)
def test_no_row_is_left(trial_store: TrialStore, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["trial_store"]
    row_counts: list[dict[str, int]] = []

    @contextlib.contextmanager
    def count_rows(folder: Path) -> Iterator[str]:
        with trial_store(folder) as url:
            yield url
            asyncio.run(_purge(url))
            row_counts.append(_rows_in_postgres(url) if kind == "postgres" else _rows_in_sqlite(folder))

    crash_everywhere(agents.parent, "Porto", store=count_rows, options=agents.not_kept, sample=6)
    assert len(row_counts) == 8
    assert all(not any(rows.values()) for rows in row_counts), row_counts
