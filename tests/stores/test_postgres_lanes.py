"""Lane by lane, a claim finds the same runs in the same order as from all due runs at once."""

import random
from collections.abc import Iterator

import psycopg
import pytest
from tests.postgres_pool import open_empty_postgres

INSERT = """
insert into holdfast.run (
    run_id, agent_name, caller_id, concurrency_key, priority, status, owner, due_at, parent_run_id, info, progress
)
values (%(id)s, %(agent)s, %(caller)s, %(key)s, %(priority)s, %(status)s, %(owner)s,
    now() + make_interval(secs => %(due)s), %(parent)s, '', '')
"""
#: Longer than the names of lanes, which are cut: they share a lane with `EXACT`.
EXACT, LONG = "k" * 200, "k" * 201
#: This many due runs of each agent are considered before the lanes are.
WINDOW = 2
KEYS = [None, "", "a", "b", "c", EXACT, LONG]


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection]:
    with open_empty_postgres() as url, psycopg.connect(url) as connection:
        yield connection


def insert_runs(connection: psycopg.Connection, chance: random.Random, count: int) -> None:
    """Insert runs of three agents and four callers. Some have an unfinished parent, `WINDOW` are abandoned."""
    for number in range(count):
        status = "running" if number < WINDOW else chance.choice(["queued", "queued", "interrupted", "waiting", "done"])
        row = {
            "id": f"run-{number}",
            "agent": chance.choice(["agent", "agent", "second", "unknown"]),
            "caller": chance.choice("wxyz"),
            "key": chance.choice(KEYS),
            "priority": chance.choice([0, 0, 3]),
            "status": status,
            "owner": "dead" if status == "running" else None,
            "due": None if status in ("running", "done") else chance.choice([3600, *[number - count] * 5]),
            "parent": f"run-{chance.randrange(count)}" if chance.random() < 0.2 else None,
        }
        connection.execute(INSERT, row)
    for key in ("a", chance.choice([EXACT, LONG])):
        connection.execute("insert into holdfast.run_limit values ('key', %s, 0, false)", [key])


def find_candidates(connection: psycopg.Connection, *, limit: int, tried: list[int], window: int) -> list[int]:
    rows = connection.execute(
        "select * from holdfast.next_runs(array['agent', 'second'], %s, %s, 100, 'here', '{}', %s)",
        (tried, limit, window),
    )
    return [run for (run,) in rows]


@pytest.mark.parametrize("seed", range(12))
def test_lanes_have_the_candidates_of_all_due_runs_in_the_same_order(connection: psycopg.Connection, seed: int) -> None:
    chance = random.Random(seed)
    try:
        insert_runs(connection, chance, count=60)
        tried: list[int] = []
        while True:
            limit = chance.choice([1, 2, 5, 30])
            expected = find_candidates(connection, limit=limit, tried=tried, window=1000)
            assert find_candidates(connection, limit=limit, tried=tried, window=WINDOW) == expected
            if not expected:
                break
            tried += expected
        assert len(tried) > 5
    finally:
        connection.rollback()
