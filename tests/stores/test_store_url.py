"""From a URL to a store."""

import pytest

from holdfast.checkpoint.errors import StoreError
from holdfast.db.postgres_url import parse_postgres_url, parse_schema
from holdfast.db.urls import parse_sqlite_path, redact_url
from holdfast.stores.from_url import store_from_url
from holdfast.stores.postgres.database import SqlFiles
from holdfast.stores.sqlite.transaction import from_micros


def test_a_file_url_is_refused_and_names_what_to_use_instead() -> None:
    with pytest.raises(StoreError, match=r"sqlite:PATH.*holdfast export"):
        store_from_url("file:./runs")


@pytest.mark.parametrize("url", ["redis://localhost", "runs.db", "sqlite:", "sqlite://", "sqlite:///"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:"):
        store_from_url(url)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:runs.db", "runs.db"),
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite:///data/runs.db", "data/runs.db"),
        ("sqlite:/data/runs.db", "/data/runs.db"),
        ("sqlite:////data/runs.db", "/data/runs.db"),
        ("sqlite://data/runs.db", "data/runs.db"),
    ],
)
def test_three_slashes_begin_a_relative_path_and_four_an_absolute_one(url: str, path: str) -> None:
    assert parse_sqlite_path(url) == path


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:top/secret@db/runs",
        "postgresql://me:top@secret@db/runs",
        "sqlite://me:secret@db/runs",
        "mysql://me:secret@db/runs",
    ],
)
def test_a_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        store_from_url(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "schema", "shown"),
    [
        ("postgresql://db/runs?schema=tenant_1", "tenant_1", "postgresql://db/runs?schema=tenant_1"),
        ("postgresql://db/runs?schema=a&sslmode=require", "a", "postgresql://db/runs?sslmode=require&schema=a"),
        ("postgresql://db/runs?sslmode=require&schema=a", "a", "postgresql://db/runs?sslmode=require&schema=a"),
        ("postgresql://db/runs", "holdfast", "postgresql://db/runs"),
    ],
)
def test_a_url_names_the_schema(url: str, schema: str, shown: str) -> None:
    store_from_url(url)
    assert parse_schema(url) == schema
    assert redact_url(url) == shown
    assert "schema" not in parse_postgres_url(url)


def test_a_schema_in_a_url_has_to_be_a_name() -> None:
    with pytest.raises(StoreError, match="schema"):
        store_from_url("postgresql://db/runs?schema=No%20Name")


@pytest.mark.parametrize("schema", ["pg_catalog", "pg_temp", "information_schema"])
def test_a_schema_of_postgresql_itself_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="belongs to PostgreSQL"):
        SqlFiles(schema)


def test_sqlite_shows_a_time_that_no_calendar_has() -> None:
    assert from_micros(2**62).year == 9999
