"""Makes the file that a release leaves behind for later ones to open: `python -m tests.stores.sqlite_fixture`.

Run once for each new version of the schema; the files are kept for good.
"""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.sqlite import SqliteStore
from holdfast.checkpoint.stores.sqlite.statements import migrations
from holdfast.testing.store_suite.subject import a_run, a_write, begun, contents, enlisted, listed

FOLDER = Path(__file__).parent / "fixtures"


async def make(path: Path) -> dict[str, object]:
    """A store with runs in every status; what is in it."""
    store = SqliteStore(path)
    await store.open()
    worker = await enlisted(store)
    await store.create(a_run("queued", b"zero", caller_id="someone"))
    rewritten = await begun(store, worker, a_run("rewritten", b"zero", b"one"))
    await store.append(rewritten, a_write(2, b"two", replace=True))
    await store.append(rewritten, a_write(3, b"three", b"four", finished_step=True))
    await store.create(a_run("child", b"zero", parent_run_id="rewritten"))
    for status in (Status.INTERRUPTED, Status.PARKED, Status.DONE, Status.FAILED, Status.CANCELLED):
        claim = await begun(store, worker, a_run(status, b"zero"))
        await store.append(claim, a_write(1, b"x" * 300))
        await store.settle(claim, Ending(status=status, reason="because", strikes=2, keep=timedelta(days=36500)))
    await store.discharge(worker)
    found = {run_id: await contents(store, run_id) for run_id in await listed(store)}
    await store.close()
    return {
        run_id: [record.status, record.strikes, [f"{entry.kind} {entry.body.decode()}" for entry in journal]]
        for run_id, (record, journal) in found.items()
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    name = f"sqlite-v{len(migrations())}"
    if (FOLDER / f"{name}.db").exists():
        raise SystemExit(f"{name}.db is there already, and is kept for good")
    expected = asyncio.run(make(FOLDER / f"{name}.db"))
    (FOLDER / f"{name}.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
