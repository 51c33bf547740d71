"""`holdfast migrate` and `holdfast grants`."""

import importlib
import pkgutil
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from tests.cli.shell import Shell
from tests.postgres_pool import open_new_postgres
from tests.stores.next_release import NEXT_VERSION, VERSION, make_next_release
from tests.stores.version_fixture import FOLDER

import holdfast.batteries
from holdfast.checkpoint.errors import SchemaTooNew
from holdfast.cli.opening import BATTERIES, migrate_all, read_versions
from holdfast.db.tables import Schema


def _run_next_release(shell: Shell, *args: str) -> "subprocess.CompletedProcess[str]":
    """What a command of the next release gave: it has one more migration."""
    release = shell.folder / "next-release"
    if not release.exists():
        make_next_release(shell.folder)
    return shell.run(*args, PYTHONPATH=str(release))


def test_a_file_of_an_earlier_version_is_reported_and_migrated(shell: Shell) -> None:
    assert "runs: migrated" in shell.ok("migrate")
    checked = _run_next_release(shell, "migrate", "--check")
    assert checked.returncode == 1
    assert checked.stdout == f"runs: needs a migration from version {VERSION} to {NEXT_VERSION}\n"
    assert _run_next_release(shell, "migrate").stdout == checked.stdout.replace("needs a migration", "migrated")
    assert _run_next_release(shell, "migrate", "--check").stdout == "all tables are up to date\n"


async def test_a_check_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'folder' / 'runs.db'}"
    assert {version.found for version in await read_versions(url)} == {0}
    assert list(tmp_path.iterdir()) == []
    shutil.copy(FOLDER / "sqlite-v1.db", tmp_path / "old.db")
    first, second = [await read_versions(f"sqlite:{tmp_path / 'old.db'}") for _ in range(2)]
    assert first == second
    assert first[0].found == 1


async def test_postgresql_of_an_earlier_version_in_a_schema_of_the_url(shell: Shell) -> None:
    with open_new_postgres() as url:
        tenant = f"{url}&schema=tenant_1"
        await migrate_all(tenant)
        assert [version for version in await read_versions(tenant) if version.found != version.known] == []
        with psycopg.connect(url) as connection:
            found = connection.execute("select distinct schemaname from pg_tables where tablename = 'budget_spent'")
            assert found.fetchall() == [("tenant_1",)]
        checked = _run_next_release(shell, "migrate", "--check", "--store", tenant)
        assert checked.stdout == f"runs: needs a migration from version {VERSION} to {NEXT_VERSION}\n"
        assert _run_next_release(shell, "migrate", "--store", tenant).returncode == 0
        with pytest.raises(SchemaTooNew):
            await read_versions(tenant)


def test_grants_are_for_the_schema_of_the_url(shell: Shell) -> None:
    printed = shell.ok("grants", "--worker", "app", "--store", "postgresql://db/runs?schema=tenant_1")
    assert printed.startswith('grant usage on schema "tenant_1" to "app";\n')


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("grants",), 2, "name a role"),
        (("grants", "--worker", "app"), 1, "roles: they are for PostgreSQL"),
        (("migrate", "--store", "memory:"), 1, "has no tables"),
    ],
)
def test_what_cannot_be_done_is_said(shell: Shell, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = shell.run(*arguments)
    assert done.returncode == code
    assert said in done.stderr


def test_every_battery_is_migrated() -> None:
    modules = [module.name for module in pkgutil.walk_packages(holdfast.batteries.__path__, "holdfast.batteries.")]
    schemas = [
        value for name in modules for value in vars(importlib.import_module(name)).values() if isinstance(value, Schema)
    ]
    assert len(schemas) >= 4
    assert {schema.name for schema in schemas} == {schema.name for schema in BATTERIES}
