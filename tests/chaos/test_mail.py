"""Workers are killed at random moments while another process sends mail. A ledger outside the store is the oracle."""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.chaos.test_fleet import SEED
from tests.core.execution.mail_worker import make_agent

from holdfast import App, Approve, RunWaiting
from holdfast.checkpoint.errors import RunEnded
from holdfast.checkpoint.store import END
from holdfast.core.errors import RunParked
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting

RUNS, KILLS = 20, 4


async def wait_for_change(app: App) -> None:
    assert app.store is not None
    await app.store.wait_for_change(timedelta(seconds=0.05))


async def answer(app: App, run_id: str) -> None:
    """Approve the payment as soon as it waits. A second answer is refused."""
    while True:
        try:
            await app.answer(run_id, "0", Approve(), by="first")
            break
        except NotWaiting:
            await wait_for_change(app)
    # The run may have read the first, or ended, meanwhile.
    with pytest.raises((AlreadyAnswered, NotWaiting, RunEnded)):
        await app.answer(run_id, "0", Approve(), by="second")


async def send_mail(app: App, run_id: str, dice: random.Random) -> None:
    """Send two messages, a signal and an answer in any order, some of them twice, and then the last signal."""
    await app.submit("mailed", "go", run_id=run_id)
    sends: list[Callable[[], Awaitable[object]]] = [
        lambda: app.send(run_id, "one", id="m1"),
        lambda: app.send(run_id, "two", id="m2"),
        lambda: app.signal(run_id, "first", 1, id="s1"),
        lambda: answer(app, run_id),
    ]
    repeated = sends[:3]
    dice.shuffle(sends)
    for send in [*sends, dice.choice(repeated)]:
        await send()
        await asyncio.sleep(dice.random() * 0.1)
    await app.signal(run_id, "second", 2, id="s2")


async def get_output(app: App, run_id: str) -> str:
    while True:
        try:
            return str((await app.result(run_id)).output)
        except RunWaiting:
            await wait_for_change(app)
        except RunParked:  # its owner was killed three times in one step
            await app.unpark(run_id)


class Killer:
    """Runs one worker at a time, and kills it at a random moment."""

    def __init__(self, url: str, ledger: Path, dice: random.Random) -> None:
        self._command = [sys.executable, "-m", "tests.core.execution.mail_worker", url, str(ledger)]
        self._dice = dice

    async def kill_workers(self, times: int, over: asyncio.Event) -> None:
        """Kill `times` workers. The next one works until the event is set."""
        for number in range(times + 1):
            worker = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
            try:
                assert worker.stdout is not None
                assert await worker.stdout.readline() == b"ready\n"
                await (over.wait() if number == times else asyncio.sleep(self._dice.random() * 0.4))
            finally:
                worker.kill()
                await worker.wait()


async def test_each_mail_is_applied_once_however_often_the_worker_is_killed(
    durable_store_url: str, tmp_path: Path
) -> None:
    print(f"seed {SEED}: repeat with HOLDFAST_CHAOS_SEED={SEED}")
    dice, ledger, over = random.Random(SEED), tmp_path / "ledger", asyncio.Event()
    run_ids = [f"r{number}" for number in range(RUNS)]
    async with App([make_agent(ledger)], durable_store_url, worker=False) as app, asyncio.TaskGroup() as group:
        group.create_task(Killer(durable_store_url, ledger, dice).kill_workers(KILLS, over))
        await asyncio.gather(*(send_mail(app, run_id, dice) for run_id in run_ids))
        outputs = dict(zip(run_ids, await asyncio.gather(*(get_output(app, r) for r in run_ids)), strict=True))
        over.set()
        assert app.store is not None
        assert [(await app.store.load(run_id, after=END)).mail for run_id in run_ids] == [()] * RUNS
    paid = Counter(ledger.read_text().split())
    assert max(paid.values()) == 1, "a payment was made twice"
    for run_id, output in outputs.items():
        texts, results = json.loads(output)
        assert sorted(texts) == ["go", "one", "two"]
        assert results[1:] == [1, 2]
        # A kill between the payment and its record leaves it in doubt. A payment that is reported was made.
        assert results[0] == UNKNOWN_OUTCOME or (results[0], paid[run_id]) == ("paid", 1)
