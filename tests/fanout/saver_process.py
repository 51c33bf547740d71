"""32 models report at once, from threads and from tasks, until this process is killed.

Each turn is in the log before it is reported, and once more when the call has returned.
"""

import asyncio
import os
import random
import sys
import threading
from pathlib import Path

from holdfast.fanout.checkpoint_file import IncrementalSaver, load
from holdfast.fanout.responses import ResponseSnapshot
from holdfast.fanout.workspace import WriteSnapshot

IDS = [f"m{number:02}" for number in range(32)]


def main(folder: Path, seed: int) -> None:
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    kept = load(folder / "checkpoint.json")
    saver = IncrementalSaver(folder / "checkpoint.json", "why?", IDS)
    begins = {each.model_id: int(each.text) for each in kept.responses} if kept else {}

    def report(model: str, turn: int, dice: random.Random) -> None:
        os.write(log, f"reported {model} {turn}\n".encode())
        writes = (WriteSnapshot(path="a.txt", content="x" * dice.randrange(2000)),)
        snapshot = ResponseSnapshot(model_id=model, text=str(turn), proposed_writes=writes, interrupted=True)
        (saver.mark_completed if dice.random() < 0.1 else saver.update)(model, snapshot)
        os.write(log, f"acknowledged {model} {turn}\n".encode())

    def in_thread(model: str) -> None:
        dice = random.Random(f"{seed}{model}")
        for turn in range(begins.get(model, 0) + 1, 10**9):
            report(model, turn, dice)

    async def in_task(model: str) -> None:
        dice = random.Random(f"{seed}{model}")
        for turn in range(begins.get(model, 0) + 1, 10**9):
            await asyncio.to_thread(report, model, turn, dice)

    async def tasks() -> None:
        await asyncio.gather(*(in_task(model) for model in IDS[16:]))

    for model in IDS[:16]:
        threading.Thread(target=in_thread, args=(model,), daemon=True).start()
    asyncio.run(tasks())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
