"""`store-check` runs the suite against a database of the user, and leaves nothing behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.cli.shell import COMMAND, Shell, environment, line_with, until
from tests.postgres_proxy import TransactionPooler
from tests.postgres_server import LocalServer, fresh_database

#: Quick tests of the suite.
SOME = "test_a_superseded_claim or test_closing_finishes or test_all_runs_are_kept"
#: A test that takes six seconds.
SLOW = "test_any_sequence_of_calls_and_kills"
PASSWORD = "sesame"

#: The server accepts mail and forgets it.
FORGETFUL = """
create function public.forget() returns trigger language plpgsql as $$ begin return null; end $$;
create function public.make_forgetful() returns event_trigger language plpgsql as $$
declare command record;
begin
    for command in select * from pg_event_trigger_ddl_commands() where object_identity like '%.mail' loop
        execute format('create trigger forget before insert on %s for each row execute function public.forget()',
                       command.object_identity);
    end loop;
end $$;
create event trigger make_forgetful on ddl_command_end when tag in ('CREATE TABLE')
    execute function public.make_forgetful();
"""


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a database without a store."""
    with fresh_database() as url:
        yield url


@pytest.fixture
def role(url: str) -> Iterator[str]:
    """A role that may connect to the database, and nothing else."""
    name = f"holdfast_checker_{uuid.uuid4().hex}"
    ask(url, f"create role {name} login")
    yield name
    ask(url, f"drop owned by {name} cascade")
    ask(url, f"drop role {name}")


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def as_role(url: str, name: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}").geturl()


def list_schemas(url: str) -> list[str]:
    return [name for (name,) in ask(url, "select nspname from pg_namespace where nspname like '%check%'")]


def find_lacks(report: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["detail"] for each in report["features"] if not each["present"] and each["required"]}


def test_a_server_that_keeps_the_contract_passes_and_keeps_nothing(shell: Shell, url: str) -> None:
    ask(url, "create schema holdfast; create table holdfast.run (id integer)")  # of another kind: it is not touched
    report = shell.json("store-check", url, "--only", SOME)
    assert report["verdict"] == "passed"
    assert report["suite"]["passed"] == report["suite"]["collected"] > 3
    assert report["suite"]["failures"] == {}
    names = [each["name"] for each in report["features"]]
    assert names == [
        *("version", "UTF-8", "own schema", "PL/pgSQL", "advisory locks", "SKIP LOCKED"),
        *("tables", "LISTEN", "settings"),
    ]
    assert find_lacks(report) == {}
    assert list_schemas(url) == []
    assert ask(url, "select count(*) from holdfast.run") == [(0,)]


def test_a_server_that_loses_mail_fails_and_the_tests_are_named(shell: Shell, url: str) -> None:
    ask(url, FORGETFUL)
    done = shell.run("store-check", url, "--only", "test_posted_mail or test_a_superseded_claim")
    assert done.returncode == 1, done.stderr
    assert re.search(r"^failed   test_posted_mail_\w+: .+$", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ passed, [1-9]\d* failed in \d+ s$", done.stdout, re.MULTILINE)
    assert list_schemas(url) == []


def test_a_role_that_may_not_create_a_schema_learns_which_right_it_lacks(shell: Shell, url: str, role: str) -> None:
    done = shell.run("store-check", as_role(url, role))
    assert done.returncode == 1
    assert "wrong    own schema: the check needs a schema of its own: use a role with the right CREATE" in done.stdout
    assert "permission denied for database" in done.stdout
    assert done.stdout.endswith("no test was run: the server lacks what the store needs\n")


def test_a_server_without_pl_pgsql_is_told_apart(shell: Shell, url: str) -> None:
    ask(url, "drop extension plpgsql")
    done = shell.run("store-check", url, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["verdict"] == "lacking"
    assert list(find_lacks(report)) == ["PL/pgSQL"]
    assert report["suite"]["collected"] == 0
    assert list_schemas(url) == []


def test_a_role_without_advisory_locks_is_told_apart(shell: Shell, url: str, role: str) -> None:
    ask(url, f'grant create on database "{urlsplit(url).path[1:]}" to {role}')
    ask(url, "revoke execute on function pg_advisory_xact_lock(bigint) from public")
    done = shell.run("store-check", as_role(url, role), "--json")
    assert done.returncode == 1
    assert list(find_lacks(json.loads(done.stdout))) == ["advisory locks"]
    assert list_schemas(url) == []


async def test_a_pooler_passes_and_the_report_says_that_no_notification_arrives(tmp_path: Path) -> None:
    server = LocalServer()
    try:
        with fresh_database(server) as url:
            pooler = TransactionPooler(server.socket, urlsplit(url).path[1:])
            async with pooler.running():
                report = await _check_in_background(pooler.url(urlsplit(url).path[1:]), tmp_path)
            assert report["verdict"] == "passed"
            assert [each["present"] for each in report["features"] if each["name"] == "LISTEN"] == [False]
            assert list_schemas(url) == []
    finally:
        server.remove()


async def _check_in_background(url: str, folder: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "store-check", url, "--json", "--only", "test_a_superseded_claim_writes_nothing",
        cwd=folder, env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    report: dict[str, Any] = json.loads(stdout)
    return report


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_check_that_is_stopped_leaves_no_schema_and_no_process(
    shell: Shell, url: str, number: signal.Signals, code: int
) -> None:
    parts = urlsplit(url)
    secret_url = parts._replace(netloc=f"postgres:{PASSWORD}@{parts.netloc.rpartition('@')[2]}").geturl()
    process = shell.start("store-check", secret_url, "--only", SLOW)
    said = line_with(process.stderr, "checking in schema")
    until(lambda: len(find_descendants(process.pid)) > 2, "the processes of the suite")
    started = find_descendants(process.pid)
    assert PASSWORD not in said + "".join(map(read_command, started))
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert process.returncode == code, stderr
    assert PASSWORD not in stdout + stderr
    assert [pid for pid in started if is_alive(pid)] == []
    assert list_schemas(url) == []


def find_descendants(pid: int) -> list[int]:
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended
        return []
    children = [int(child) for text in tasks for child in text.split()]
    return [each for child in children for each in (child, *find_descendants(child))]


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_test_that_takes_too_long_fails_and_nothing_is_left(shell: Shell, url: str) -> None:
    arguments = ("store-check", url, "--only", SLOW, "--timeout", "15", "--json")
    done = shell.run(*arguments, HOLDFAST_TEST_THOROUGH="1")  # a test of a minute
    assert done.returncode == 1, done.stderr
    suite = json.loads(done.stdout)["suite"]
    assert suite["failures"] == {
        "test_any_sequence_of_calls_and_kills_matches_the_model": "it had not ended when the time of 15 s was over"
    }
    assert list_schemas(url) == []


def test_a_sqlite_file_is_not_touched_and_the_folder_beside_it_is_removed(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    before = {path.name: path.read_bytes() for path in shell.folder.iterdir()}
    report = shell.json("store-check", "sqlite:runs.db", "--only", SOME)
    assert (report["verdict"], report["suite"]["failures"]) == ("passed", {})
    assert {path.name: path.read_bytes() for path in shell.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory:", "'memory:' cannot be checked: write postgresql://HOST/DATABASE or sqlite:PATH"),
        ("sqlite:nowhere/runs.db", "there is no folder nowhere: create it, or name a file in another one"),
    ],
)
def test_a_url_that_cannot_be_checked_is_wrong_usage(shell: Shell, url: str, said: str) -> None:
    done = shell.run("store-check", url)
    assert (done.returncode, done.stderr) == (2, f"holdfast: {said}\n")
    assert list(shell.folder.iterdir()) == []


def test_names_that_match_no_test_are_an_error(shell: Shell) -> None:
    done = shell.run("store-check", "sqlite:runs.db", "--only", "no_such_test")
    assert done.returncode == 1
    assert "pytest ran no test" in done.stderr
    assert list(shell.folder.iterdir()) == []


@pytest.mark.parametrize("missing", ["pytest", "hypothesis", "pytest_asyncio"])
def test_without_its_extra_the_command_says_what_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module {missing}', name='{missing}')\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast", "store-check", "sqlite:runs.db"],
        cwd=tmp_path, env=environment({"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment({})['PYTHONPATH']}"}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f'holdfast: {missing} is not installed: pip install "holdfast[testing]"\n'
