"""The file store beside a bare append and sync on this machine: `python -m bench.parts.file_store`.

Store and raw take turns, so that the noise of the machine meets both. Look at the ratios; the figures change from
machine to machine.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import NewRun, RunFilter
from holdfast.checkpoint.stores.file import FileStore

BODY = b'{"role":"assistant","text":"%s"}' % (b"x" * (2048 - 33))
PROGRESS = b'{"iteration":17,"own_usage":{"input":1234,"output":567}}'
WORKER = Worker(worker_id="bench", process=this_process())


def say(what: str, value: str) -> None:
    print(f"{what:62} {value:>24}", flush=True)


@contextmanager
def new_folder() -> Iterator[Path]:
    """On the disk that the working directory is on: /tmp may be memory."""
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@asynccontextmanager
async def new_store(folder: Path) -> AsyncIterator[FileStore]:
    store = FileStore(folder)
    await store.open()
    await store.enlist(WORKER)
    try:
        yield store
    finally:
        await store.close()


async def begun(store: FileStore, run_id: str) -> Claim:
    first = Entry(seq=0, kind=EntryKind.BEGIN, body=b'{"version":1}')
    run = NewRun(run_id=run_id, agent_name="bench", meta=b'{"prompt":"hi"}', progress=PROGRESS, entries=[first])
    claim = await store.create(run, worker_id=WORKER.worker_id)
    assert claim is not None
    return claim


def a_write(seq: int) -> Write:
    return Write(entries=[Entry(seq=seq, kind=EntryKind.MESSAGE, body=BODY)], progress=PROGRESS, finished_step=True)


def milliseconds(times: list[float]) -> str:
    return f"{statistics.median(times) * 1000:.3f} ms"


async def one_run(entries: int = 5000) -> None:
    with new_folder() as folder:
        raw_fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        raw: list[float] = []
        ours: list[float] = []
        async with new_store(folder / "store") as store:
            claim = await begun(store, "run")
            for seq in range(1, entries + 1):
                started = time.perf_counter()
                os.write(raw_fd, BODY)
                os.fsync(raw_fd)
                between = time.perf_counter()
                await store.append(claim, a_write(seq))
                raw.append(between - started)
                ours.append(time.perf_counter() - between)
        os.close(raw_fd)
        for at in (10, 1000, entries):
            near = slice(max(0, at - 100), at) if at > 100 else slice(0, 100)
            ratio = statistics.median(ours[near]) / statistics.median(raw[near])
            say(f"2 KB append at entry {at}: raw append and fsync", milliseconds(raw[near]))
            say(f"2 KB append at entry {at}: file store", f"{milliseconds(ours[near])} ({ratio:.2f} x)")
        size = (folder / "store" / "runs" / "run.jsonl").stat().st_size
        say(
            "last hundred beside first hundred",
            f"{statistics.median(ours[-100:]) / statistics.median(ours[:100]):.2f} x",
        )
        say("file size beside transcript", f"{size / (entries * len(BODY)):.2f} x")


async def many_runs(count: int, steps: int = 20) -> None:
    with new_folder() as folder:
        async with new_store(folder) as store:
            claims = [await begun(store, f"run-{n}") for n in range(count)]

            async def drive(claim: Claim) -> None:
                for seq in range(1, steps + 1):
                    await store.append(claim, a_write(seq))

            started = time.perf_counter()
            await asyncio.gather(*map(drive, claims))
            say(
                f"{count} runs at once, {steps} steps each",
                f"{count * steps / (time.perf_counter() - started):,.0f} steps/s",
            )


async def many_interrupted(count: int = 1000, steps: int = 50) -> None:
    with new_folder() as folder:
        async with new_store(folder) as store:
            for n in range(count):
                claim = await begun(store, f"run-{n}")
                entries = [entry for seq in range(1, steps + 1) for entry in a_write(seq).entries]
                await store.append(claim, Write(entries=entries, progress=PROGRESS))
            await store.discharge(WORKER.worker_id)
            for _ in range(2):
                started = time.perf_counter()
                found = [record.run_id async for record in store.records(RunFilter(interrupted=True))]
                say(
                    f"list {len(found)} interrupted runs of {steps} steps",
                    f"{(time.perf_counter() - started) * 1000:.0f} ms",
                )
            started = time.perf_counter()
            for run_id in found:
                await store.load(run_id)
            ours = time.perf_counter() - started
            started = time.perf_counter()
            for path in (folder / "runs").iterdir():
                path.read_bytes()
            raw = time.perf_counter() - started
            say("load them all (and reading the bare files)", f"{ours:.2f} s ({raw:.2f} s)")


async def main() -> None:
    await one_run()
    for count in (1, 16, 128):
        await many_runs(count)
    await many_interrupted()


if __name__ == "__main__":
    asyncio.run(main())
