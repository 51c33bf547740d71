"""Makes the file that a release leaves behind for later ones to open: `python -m tests.stores.sqlite_fixture`.

Run once for each new version of the schema; the files are kept for good.
"""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.checkpoint.record import Release, RunStatus, StoredRun
from holdfast.stores.sqlite import SqliteStore
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


async def make(path: Path) -> dict[str, object]:
    """A store with runs in every status; what is in it."""
    store = SqliteStore(path)
    await store.open()
    worker = await add_worker(store)
    await store.create(make_run("queued", b"zero", caller_id="someone"))
    rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
    await store.append(rewritten, make_append(2, b"two", rewrite=True))
    await store.append(rewritten, make_append(3, b"three", b"four", step_finished=True))
    await store.create(make_run("child", b"zero", parent_run_id="rewritten", labels={"team": "a", "env": "b"}))
    waiting = await create_claimed(store, worker, make_run("waiting", b"zero", labels={"team": "a"}))
    await store.post("waiting", make_mail("consumed"))
    await store.post("waiting", make_mail("unread", topic="answer:1"))
    release = Release(status=RunStatus.WAITING, consumed=["consumed"], wake_at=WAKE_AT, wake_on=["message"])
    await store.release(waiting, release)
    for status in (RunStatus.INTERRUPTED, RunStatus.PARKED, RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED):
        claim = await create_claimed(store, worker, make_run(status, b"zero"))
        await store.append(claim, make_append(1, b"x" * 300))
        await store.release(claim, Release(status=status, reason="because", strikes=2, retention=timedelta(days=36500)))
    await store.deregister_worker(worker)
    found = await describe(store)
    await store.close()
    return found


async def describe(store: SqliteStore) -> dict[str, object]:
    """Return what is in the store."""
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
    ]
    return [*found, *extra] if any(extra) else found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    name = f"sqlite-v{len(load_migrations())}"
    if (FOLDER / f"{name}.db").exists():
        raise SystemExit(f"{name}.db is there already, and is kept for good")
    expected = asyncio.run(make(FOLDER / f"{name}.db"))
    (FOLDER / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
