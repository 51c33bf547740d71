"""Makes the dump that a release leaves behind for later ones to open: `python -m tests.stores.postgres_fixture`.

Run once for each new version of the schema; the files are kept for good. `restore` brings such a dump into a database.
"""

import asyncio
import json
import subprocess
from datetime import timedelta
from pathlib import Path

import psycopg
from tests.postgres_server import LocalServer, fresh_database

from holdfast.checkpoint.record import Mail, Release, RunStatus
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.database import SqlFiles
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_contents,
    make_append,
    make_run,
)

FOLDER = Path(__file__).parent / "fixtures"
#: Comments, and settings of the program that dumps and of the server that was dumped. Others need not know them.
_NOT_OURS = ("--", "\\", "SET ", "SELECT pg_catalog.set_config(")
#: The functions come before the tables.
_FIRST = "SET check_function_bodies = off;"


async def make(url: str) -> dict[str, object]:
    """A store with runs in every status; what is in it."""
    store = PostgresStore(url)
    await store.open()
    worker = await add_worker(store)
    await store.create(make_run("queued", b"zero", caller_id="someone", labels={"team": "red"}))
    await store.post("queued", Mail(mail_id="mail-1", topic="message", body=b"hello"))
    waiting = await create_claimed(store, worker, make_run("waiting", b"zero"))
    await store.release(waiting, Release(status=RunStatus.WAITING, wake_on=["message"]))
    rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
    await store.append(rewritten, make_append(2, b"two", rewrite=True))
    await store.append(rewritten, make_append(3, b"three", b"four", step_finished=True))
    await store.create(make_run("child", b"zero", parent_run_id="rewritten"))
    for status in (RunStatus.INTERRUPTED, RunStatus.PARKED, RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED):
        claim = await create_claimed(store, worker, make_run(status, b"zero"))
        await store.append(claim, make_append(1, b"x" * 300))
        await store.release(claim, Release(status=status, reason="because", strikes=2, retention=timedelta(days=36500)))
    # More than a page of the server holds, and more than a row.
    long = await create_claimed(store, worker, make_run("long", b"zero"))
    for seq in range(1, 11):
        await store.append(long, make_append(seq, b"%d" % seq * 1200))
    await store.append(long, make_append(11, b"long " * 2000))
    await store.deregister_worker(worker)
    found = await kept(store)
    await store.close()
    return found


async def kept(store: PostgresStore) -> dict[str, object]:
    """What is in a store, as the JSON beside a dump has it."""
    found = {run_id: await load_contents(store, run_id) for run_id in await list_run_ids(store)}
    return {
        run_id: [record.status, record.strikes, [f"{entry.kind} {entry.body.decode()}" for entry in journal]]
        for run_id, (record, journal) in found.items()
    }


def restore(url: str, version: int) -> dict[str, object]:
    """Bring the dump of that version into an empty database. Gives what a store has to find there."""
    dump = (FOLDER / f"postgres-v{version}.sql").read_text()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(dump.encode())
    expected: dict[str, object] = json.loads((FOLDER / f"postgres-v{version}.json").read_text())
    return expected


def main() -> None:
    name = f"postgres-v{len(SqlFiles('holdfast').migrations)}"
    if (FOLDER / f"{name}.sql").exists():
        raise SystemExit(f"{name}.sql is there already, and is kept for good")
    server = LocalServer()
    with fresh_database(server) as url:
        expected = asyncio.run(make(url))
        command = [str(server.programs / "pg_dump"), "--schema=holdfast", "--inserts", "--no-owner", "--no-privileges"]
        dump = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
    lines = [line for line in dump.splitlines() if line and not line.startswith(_NOT_OURS)]
    (FOLDER / f"{name}.sql").write_text("\n".join([_FIRST, *lines]) + "\n")
    (FOLDER / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
