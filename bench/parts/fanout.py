"""What keeping a fan-out's checkpoint file costs: `python -m bench.parts.fanout`.

32 models, 1 MB of proposed writes in all. Each update takes turns with one raw write and fsync of the same bytes, so
that the noise of the machine meets both.
"""

import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.fanout import IncrementalSaver, ResponseSnapshot, WriteSnapshot
from holdfast.fanout.checkpoint_file import write_atomically

MODELS = [f"provider:model-{number:02}" for number in range(32)]
BYTES = 1_000_000
ROUNDS = 100


def make_snapshot(model: str, turn: int) -> ResponseSnapshot:
    lines = f'line of a file that {model} proposes, with "quotes" and an umlaut: ü\n'
    content = (lines * (BYTES // len(MODELS) // len(lines) + 1))[: BYTES // len(MODELS)]
    writes = tuple(WriteSnapshot(path=f"file{at}.txt", content=content[at::4]) for at in range(4))
    return ResponseSnapshot(model_id=model, text=f"turn {turn}", proposed_writes=writes, interrupted=True)


def raw(path: Path, data: bytes) -> float:
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.write(fd, data)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory(dir=".") as folder, ThreadPoolExecutor(len(MODELS)) as pool:
        path = Path(folder) / "checkpoint.json"
        saver = IncrementalSaver(path, "prompt", MODELS)

        def update(model: str, turn: int) -> None:
            saver.update(model, make_snapshot(model, turn))

        for model in MODELS:
            update(model, 0)
        updates, raws, atomics = [], [], []
        for turn in range(ROUNDS):
            changed = make_snapshot(MODELS[turn % len(MODELS)], turn)
            began = time.perf_counter()
            saver.update(changed.model_id, changed)
            updates.append(time.perf_counter() - began)
            data = path.read_bytes()
            raws.append(raw(Path(folder) / "raw", data))
            began = time.perf_counter()
            write_atomically(Path(folder) / "atomic", data)
            atomics.append(time.perf_counter() - began)
        began = time.perf_counter()
        list(pool.map(update, MODELS, [ROUNDS] * len(MODELS)))
        all_at_once = time.perf_counter() - began
        size = path.stat().st_size
    print(f"checkpoint of {len(MODELS)} models, {size:,} bytes")
    print(f"one update:                   {statistics.median(updates) * 1000:6.2f} ms (median of {ROUNDS})")
    print(f"the same bytes, raw + fsync:  {statistics.median(raws) * 1000:6.2f} ms")
    print(
        f"the same bytes, atomically:   {statistics.median(atomics) * 1000:6.2f} ms (new file, rename, folder synced)"
    )
    print(f"all {len(MODELS)} update at once:       {all_at_once * 1000:6.2f} ms")


if __name__ == "__main__":
    main()
