"""Makes what a release leaves behind for later ones to open: `python -m tests.stores.version_fixture`.

Run once for each new version of a schema. From the first release on the files are kept for good.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import psycopg
from tests.postgres_server import LocalServer, fresh_database

from holdfast.checkpoint.record import Release, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore
from holdfast.stores.from_url import store_from_url
from holdfast.stores.postgres.database import SqlFiles
from holdfast.stores.sqlite.database import load_migrations
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    make_append,
    make_mail,
    make_run,
)

FOLDER = Path(__file__).parent / "fixtures"
#: Later than any test runs.
WAKE_AT = datetime(2900, 1, 1, tzinfo=UTC)
#: Comments, and settings of the program that dumps and of the server that was dumped. Others need not know them.
_NOT_OURS = ("--", "\\", "SET ", "SELECT pg_catalog.set_config(")
#: The functions come before the tables.
_FIRST = "SET check_function_bodies = off;"


async def fill(url: str) -> dict[str, object]:
    """Put runs in every status into an empty store. Returns what is in it."""
    store = store_from_url(url)
    await store.open()
    worker = await add_worker(store)
    await store.create(make_run("queued", b"zero", caller_id="someone"))
    rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
    await store.append(rewritten, make_append(2, b"two", rewrite=True))
    await store.append(rewritten, make_append(3, b"three", b"four", step_finished=True))
    labels = {"team": "a", "env": "b"}
    child = make_run("child", b"zero", parent_run_id="rewritten", labels=labels, tenant="acme", background=True)
    await store.create(child)
    waiting = await create_claimed(store, worker, make_run("waiting", b"zero", labels={"team": "a"}))
    await store.post("waiting", make_mail("consumed"))
    await store.post("waiting", make_mail("unread", topic="answer:1"))
    release = Release(status=RunStatus.WAITING, consumed=["consumed"], wake_at=WAKE_AT, wake_on=["message"])
    await store.release(waiting, release)
    for status in (RunStatus.INTERRUPTED, RunStatus.PARKED, RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED):
        claim = await create_claimed(store, worker, make_run(status, b"zero"))
        await store.append(claim, make_append(1, b"x" * 300))
        await store.release(claim, Release(status=status, reason="because", strikes=2, retention=timedelta(days=36500)))
    # More than a page of a server holds, and more than a row.
    long = await create_claimed(store, worker, make_run("long", b"zero"))
    for seq in range(1, 11):
        await store.append(long, make_append(seq, b"%d" % seq * 1200))
    await store.append(long, make_append(11, b"long " * 2000))
    await store.deregister_worker(worker)
    found = await describe(store)
    await store.close()
    return found


async def describe(store: RunStore) -> dict[str, object]:
    """Return what is in the store, as the JSON beside the fixtures has it."""
    stored = [await store.load(run_id) for run_id in await list_run_ids(store)]
    return {run.record.run_id: _describe_run(run) for run in stored}


def _describe_run(run: StoredRun) -> list[object]:
    record = run.record
    found = [record.status, record.strikes, [f"{entry.kind} {entry.body.decode()}" for entry in run.entries]]
    extra = [
        dict(record.labels),
        record.wake_at and record.wake_at.isoformat(),
        list(record.wake_on),
        [f"{mail.mail_id} {mail.topic} {mail.body.decode()}" for mail in run.mail],
        record.tenant,
        record.background,
    ]
    return [*found, *extra] if any(extra) else found


def read_expected(version: int) -> dict[str, object]:
    """Return what a store has to find in a fixture."""
    expected: dict[str, object] = json.loads((FOLDER / f"runs-v{version}.json").read_text())
    return expected


def restore_postgres(url: str, version: int) -> None:
    """Bring the dump of that version into an empty database."""
    dump = (FOLDER / f"postgres-v{version}.sql").read_text()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(dump.encode())


def _make_sqlite(version: int) -> dict[str, object]:
    path = FOLDER / f"sqlite-v{version}.db"
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(fill(f"sqlite:{folder}/runs.db"))
        connection = apsw.Connection(f"{folder}/runs.db")
        connection.execute("VACUUM")  # the deleted row of the worker names this host
        connection.close()
        path.write_bytes(Path(folder, "runs.db").read_bytes())
    return found


def _make_postgres(version: int) -> dict[str, object]:
    server = LocalServer()
    with fresh_database(server) as url:
        found = asyncio.run(fill(url))
        command = [str(server.programs / "pg_dump"), "--schema=holdfast", "--inserts", "--no-owner", "--no-privileges"]
        dump = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    lines = [line for line in dump.splitlines() if line and not line.startswith(_NOT_OURS)]
    (FOLDER / f"postgres-v{version}.sql").write_text("\n".join([_FIRST, *lines]) + "\n")
    return found


def main() -> None:
    version = len(load_migrations())
    assert version == len(SqlFiles("holdfast").migrations), "both databases have the same version"
    path = FOLDER / f"runs-v{version}.json"
    if path.exists() and "--replace" not in sys.argv:
        raise SystemExit(f"{path.name} is there already: until the first release, --replace makes it anew")
    expected = _make_sqlite(version)
    assert _make_postgres(version) == expected, "both stores hold the same"
    path.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
