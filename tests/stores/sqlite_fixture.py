"""Makes the file that a release leaves behind for later ones to open: `python -m tests.stores.sqlite_fixture`.

Run once for each new version of the schema; the files are kept for good.
"""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

from holdfast.checkpoint.record import Release, RunStatus
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import load_migrations
from holdfast.testing.store_suite.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_contents,
    make_append,
    make_run,
)

FOLDER = Path(__file__).parent / "fixtures"


async def make(path: Path) -> dict[str, object]:
    """A store with runs in every status; what is in it."""
    store = SqliteStore(path)
    await store.open()
    worker = await add_worker(store)
    await store.create(make_run("queued", b"zero", caller_id="someone"))
    rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
    await store.append(rewritten, make_append(2, b"two", rewrite=True))
    await store.append(rewritten, make_append(3, b"three", b"four", step_finished=True))
    await store.create(make_run("child", b"zero", parent_run_id="rewritten"))
    for status in (RunStatus.INTERRUPTED, RunStatus.PARKED, RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED):
        claim = await create_claimed(store, worker, make_run(status, b"zero"))
        await store.append(claim, make_append(1, b"x" * 300))
        await store.release(claim, Release(status=status, reason="because", strikes=2, retention=timedelta(days=36500)))
    await store.deregister_worker(worker)
    found = {run_id: await load_contents(store, run_id) for run_id in await list_run_ids(store)}
    await store.close()
    return {
        run_id: [record.status, record.strikes, [f"{entry.kind} {entry.body.decode()}" for entry in journal]]
        for run_id, (record, journal) in found.items()
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    name = f"sqlite-v{len(load_migrations())}"
    if (FOLDER / f"{name}.db").exists():
        raise SystemExit(f"{name}.db is there already, and is kept for good")
    expected = asyncio.run(make(FOLDER / f"{name}.db"))
    (FOLDER / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
