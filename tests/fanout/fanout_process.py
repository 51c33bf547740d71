"""A fan-out of scripted models, in a process that may be killed. Prints its responses as JSON when it comes to its end.

Every request to a model is in the file `requests` before it is answered.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Reply, ToolCall, Usage
from holdfast.checkpoint.record import RunStatus
from holdfast.fanout import Fanout, FanoutSettings, ModelResponse
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.wrapper import StoreWrapper

#: The turns of each model before its answer.
MODELS = {
    f"p{number % 2}:m{number}": 2 + number % 6 for number in range(int(os.environ.get("HOLDFAST_FANOUT_MODELS", "6")))
}


def make_model(folder: Path, attempt: str, model: str, turns: int) -> Any:
    log = os.open(folder / "requests", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    async def ask(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        turn = sum(isinstance(message, Reply) for message in messages)
        os.write(log, f"{attempt} {model} {turn}\n".encode())
        await asyncio.sleep(0.02)
        usage = Usage(input_tokens=10, output_tokens=turn, cost_usd=0.25)
        if turn == turns:
            return Reply(text=f"{model} has answered", usage=usage)
        calls = [
            ToolCall(id="1", name="write_file", arguments={"path": f"{turn}.txt", "content": f"{model} {turn}"}),
            ToolCall(id="2", name="edit_file", arguments={"path": "a.txt", "old": f"<{turn}>", "new": f"<{turn + 1}>"}),
        ]
        return Reply(text=f"turn {turn}", tool_calls=calls, usage=usage)

    return ask


class KillingStore(StoreWrapper):
    """A store whose process dies at one moment after the last reply of the second model."""

    def __init__(self, path: Path, death: str) -> None:
        super().__init__(SqliteStore(path))
        self._death, self._ended = death, 0

    async def release(self, claim: Any, release: Any) -> None:
        self._ended += release.status is RunStatus.DONE
        if self._ended == 2:
            self.kill_at("release")
        await self._store.release(claim, release)
        if self._ended == 2:
            self.kill_at("settled")

    async def append(self, claim: Any, write: Any) -> None:
        if self._ended == 2:
            self.kill_at("append")
        await self._store.append(claim, write)
        if self._ended == 2:
            self.kill_at("appended")

    def kill_at(self, moment: str) -> None:
        if self._death == moment:
            os.kill(os.getpid(), signal.SIGKILL)


async def run_fanout(folder: Path, attempt: str, *, checkpoint: Path | None, death: str = "") -> list[ModelResponse]:
    models = {model: make_model(folder, attempt, model, turns) for model, turns in MODELS.items()}
    store = KillingStore(folder / "runs.db", death)
    fanout = Fanout(
        "why?",
        models,
        workspace=folder / "work",
        store=store,
        checkpoint=checkpoint,
        settings=FanoutSettings(max_concurrency=1 if death else 4, max_per_provider=3),
    )
    return await fanout.run()


if __name__ == "__main__":
    at = Path(sys.argv[1])
    kept = at / "checkpoint.json" if sys.argv[3] == "file" else None
    death = sys.argv[4] if len(sys.argv) > 4 else ""
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_fanout(at, sys.argv[2], checkpoint=kept, death=death))))
