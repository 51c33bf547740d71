"""A claim and a page read a few rows, however many runs there are, and with the statistics of an empty table."""

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from tests.postgres_pool import open_new_postgres

#: Three thousand of each, and three that are due. No process analyzes the tables so soon.
FILL = """
insert into holdfast.run (run_id, agent_name, caller_id, status, due_at, created_at, tenant, labels, info, progress)
select status || n, name, name, status, now() + due, now() - make_interval(secs => n), tenant, labels, '', ''
from generate_series(1, 3000) as n,
    lateral (select case when n % 1000 = 0 then 'rare' else 'agent' end) as agent (name),
    lateral (select case name when 'rare' then 'acme' else '' end) as owner (tenant),
    lateral (select jsonb_build_object('all', 'yes', 'team', name)) as label (labels),
    (values ('done', null), ('waiting', interval '1 day'), ('parked', null), ('interrupted', interval '1 hour'))
        as kind (status, due);
insert into holdfast.run_label
select holdfast.label_key(l.key, l.value), r.created_at, r.id from holdfast.run r, jsonb_each_text(r.labels) l;
insert into holdfast.run (run_id, agent_name, caller_id, status, due_at, info, progress)
select 'queued' || n, 'agent', 'caller', 'queued', now(), '', '' from generate_series(1, 3) as n
"""
READ = (
    "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables where relname = 'run'"
)


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection]:
    with open_new_postgres() as url, psycopg.connect(url) as connection:
        connection.execute(FILL.encode())
        connection.commit()
        yield connection


def rows_read(connection: psycopg.Connection, statement: str, *params: object) -> tuple[int, int]:
    """The number of rows that the statement returns, and of runs that it reads."""
    [(before,)] = connection.execute(READ.encode()).fetchall()
    found = connection.execute(statement.encode(), params or None).fetchall()
    [(after,)] = connection.execute(READ.encode()).fetchall()
    connection.rollback()
    return len(found), after - before


def test_runs_that_wait_or_are_delayed_cost_a_claim_nothing(connection: psycopg.Connection) -> None:
    arguments = "array['agent', 'rare'], '{}', 16, 16, 'here', '{}'"
    for window in (300, 3):  # within the window, and caller by caller
        found, read = rows_read(connection, f"select * from holdfast.next_runs({arguments}, {window})")
        assert found == 3
        assert read <= 40


@pytest.mark.parametrize(
    "filter",
    [
        {},
        {"statuses": ["queued"]},
        {"statuses": ["queued", "parked"]},
        {"statuses": ["queued", "running", "interrupted"], "interrupted": True},
        {"statuses": ["done"]},
        {"agent_name": "rare"},
        {"agent_name": "agent"},
        {"caller_id": "rare"},
        {"parent_run_id": "none"},
        {"tenant": "acme"},
        {"tenant": ""},
        {"labels": {"team": "rare"}},
        {"labels": {"team": "agent"}},
        {"labels": {"all": "yes", "team": "rare"}},
        {"labels": {"all": "yes", "team": "none"}},
        {"created_before": "2020-01-01"},
        {"agent_name": "agent", "statuses": ["done"]},
    ],
    ids=str,
)
def test_a_page_reads_what_it_shows(connection: psycopg.Connection, filter: dict[str, Any]) -> None:
    about = {"labels": {}, "interrupted": False, "newest_first": True, "limit": 50} | filter
    found, read = rows_read(
        connection, "select * from holdfast.list_runs(%s::jsonb, 'here', '{}')", msgspec.json.encode(about).decode()
    )
    assert read <= 4 * found + 60
