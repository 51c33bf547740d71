"""Empty stores for trials."""

import contextlib
import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
from tests.store_kinds import STORES, open_empty_postgres

#: From the folder of a trial to the URL of an empty store.
TrialStore = Callable[[Path], AbstractContextManager[str]]


class DatabasePool:
    """PostgreSQL databases that are truncated and reused, because creating one takes longer than a trial."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._created = contextlib.ExitStack()

    @contextlib.contextmanager
    def open_empty(self, folder: Path) -> Iterator[str]:
        try:
            url = self._free.get_nowait()
        except queue.Empty:
            url = self._created.enter_context(open_empty_postgres())
        yield url
        _truncate_tables(url)
        self._free.put(url)

    def drop(self) -> None:
        self._created.close()


def _truncate_tables(url: str) -> None:
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables"
            " where schemaname = 'holdfast' and tablename <> 'schema_version'"
        ).fetchall()
        if tables:
            connection.execute(f"truncate {', '.join(name for (name,) in tables)}".encode())


def make_trial_stores(databases: DatabasePool) -> dict[str, TrialStore]:
    return {"sqlite": STORES["sqlite"].open_empty, "postgres": databases.open_empty}
