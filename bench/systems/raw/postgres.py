"""PostgreSQL with nothing around it: one connection, one statement a commit."""

from collections.abc import Sequence

import psycopg
from bench.systems.raw.row import Row


class PostgresLog:
    """A table of messages."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(
            "create table if not exists messages (run bigint, seq bigint, body bytea, primary key (run, seq));"
            "alter table messages alter column body set storage external"
        )

    def append(self, rows: Sequence[Row]) -> None:
        runs, seqs, bodies = zip(*rows, strict=True)
        self._connection.execute(
            "insert into messages select * from unnest(%b::bigint[], %b::bigint[], %b::bytea[])",
            (list(runs), list(seqs), list(bodies)),
        )

    def runs(self) -> list[int]:
        # One step through the index for each run: a plain DISTINCT would read all of it.
        found = self._connection.execute(
            "with recursive known(run) as (select min(run) from messages union all"
            " select (select min(run) from messages where run > known.run) from known where known.run is not null)"
            " select run from known where run is not null"
        )
        return [run for (run,) in found]

    def load(self, run: int) -> list[bytes]:
        cursor = self._connection.cursor(binary=True)
        found = cursor.execute("select body from messages where run = %s order by seq", (run,))
        return [body for (body,) in found]

    def close(self) -> None:
        self._connection.close()
