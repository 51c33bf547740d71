"""Lock files are unlinked with their runs: processes that fight for one id never share it."""

import subprocess
import sys
from pathlib import Path

PROCESSES, ROUNDS = 4, 100

_FIGHT = """
import asyncio, contextlib, sys
from holdfast.checkpoint.errors import RunBusy, RunExists, RunNotFound
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write, bodies_of, enlisted

async def main(folder, me, rounds):
    store = FileStore(folder, durability="process")
    await store.open()
    worker, tokens = await enlisted(store), []
    while len(tokens) < rounds:
        try:
            with contextlib.suppress(RunExists):
                await store.create(a_run("run-1"))
            claim = await store.claim("run-1", worker)
        except (RunBusy, RunNotFound):
            continue
        await store.append(claim, a_write(1, me))
        assert await bodies_of(store) == [b"begin", me], "somebody else wrote to our run"
        await store.remove("run-1", claim=claim)
        tokens.append(claim.token)
    await store.discharge(worker)
    await store.close()
    print(*tokens)

asyncio.run(main(sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])))
"""


def test_processes_that_create_and_remove_one_id_never_share_it(tmp_path: Path) -> None:
    fighters = [
        subprocess.Popen(
            [sys.executable, "-c", _FIGHT, str(tmp_path / "store"), f"process {n}", str(ROUNDS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    results = [fighter.communicate(timeout=110) for fighter in fighters]
    assert [fighter.returncode for fighter in fighters] == [0] * PROCESSES, results
    tokens = [[int(token) for token in stdout.split()] for stdout, _ in results]
    assert len({token for own in tokens for token in own}) == PROCESSES * ROUNDS, "a token was given out twice"
    assert all(own == sorted(own) for own in tokens)
    left = [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert sorted(left) == ["changes", "clock", "format.json", "tokens"]
