"""32 models report at once, from threads and from tasks, until this process is killed.

Each turn is in the log before it is reported, and once more when its flush was acknowledged.
"""

import asyncio
import os
import random
import sys
import threading
from pathlib import Path

from holdfast.fanout import IncrementalSaver, ModelResponse, PartialResponse, ProposedWrite, load

IDS = [f"m{number:02}" for number in range(32)]


def main(folder: Path, seed: int) -> None:
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    kept = load(folder / "checkpoint.json")
    saver = IncrementalSaver(
        folder / "checkpoint.json", "why?", IDS, snapshots=kept.snapshots if kept else (), fanout_id="f"
    )
    begins = {each.model_id: int(each.text) if each.text else 0 for each in kept.snapshots} if kept else {}

    def report(model: str, turn: int, dice: random.Random) -> object:
        os.write(log, f"reported {model} {turn}\n".encode())
        if turn > 0 and dice.random() < 0.001 and model in IDS[::5]:
            return saver.mark_completed(ModelResponse(model_id=model, text=str(turn)))
        writes = (ProposedWrite(path="a.txt", content="x" * dice.randrange(2000)),)
        return saver.update(PartialResponse(model_id=model, text=str(turn), proposed_writes=writes))

    def acknowledge(model: str, turn: int) -> None:
        os.write(log, f"acknowledged {model} {turn}\n".encode())

    def in_thread(model: str) -> None:
        dice = random.Random(f"{seed}{model}")
        for turn in range(begins.get(model, 0) + 1, 10**9):
            flushed = report(model, turn, dice)
            if dice.random() < 0.7 and flushed.wait():  # type: ignore[attr-defined]
                acknowledge(model, turn)

    async def in_task(model: str) -> None:
        dice = random.Random(f"{seed}{model}")
        for turn in range(begins.get(model, 0) + 1, 10**9):
            flushed = report(model, turn, dice)
            if dice.random() < 0.7 and await flushed:  # type: ignore[misc]
                acknowledge(model, turn)
            await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(in_task(model) for model in IDS[16:]))

    for model in IDS[:16]:
        threading.Thread(target=in_thread, args=(model,), daemon=True).start()
    asyncio.run(tasks())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
