"""The demo itself: lives one after the other, a kill in each but the last, all of it shown."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.demo.clerk import AT_ONCE, NAME, PROMPT, ROUNDS, RUN_ID, STEPS
from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.verdict import Life, Snapshot, Verdict, judge
from holdfast.cli.errors import CommandError
from holdfast.cli.output import Paper
from holdfast.cli.stores import opened, operating
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunEvent

#: About how long a step takes at a pace of 1: a kill comes anywhere within it.
_STEP = 0.4
#: And the time between two results of a batch.
_MOMENT = 0.05

#: Every other step but the last, which only answers.
MOST_KILLS = (STEPS - 1) // 2


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """When a life ends."""

    #: Within this step, or the next one if that is too soon.
    step: int
    #: Not anywhere within it, but when some calls of a batch have their results and others have not.
    half_way: bool


class Demo:
    """One demo in one folder."""

    def __init__(self, folder: Path, seed: int, kills: int, pace: float, paper: Paper) -> None:
        self.store_url = f"sqlite:{folder / 'runs.db'}"
        self._ledger = folder / "ledger.jsonl"
        self._paper, self._pace = paper, pace
        self._chance = random.Random(seed)  # noqa: S311 - nobody has to be surprised by it
        self._kills = self._plan(kills)
        self._lives: list[Life] = []
        #: How many of the payments that were looked up are told already.
        self._found = 0

    def _plan(self, kills: int) -> list[Kill]:
        """When to kill. Between two kills, and before the first, a step is finished; every other one is half-way."""
        chosen = sorted(self._chance.sample(range(2, STEPS + 1 - kills), kills))
        turn = self._chance.randrange(2)
        return [Kill(step=step + place, half_way=place % 2 == turn or kills == 1) for place, step in enumerate(chosen)]

    async def play(self) -> Verdict:
        """Everything, from the submission to the count."""
        info = RunInfo(run_id=RUN_ID, agent_name=NAME, inputs={"prompt": PROMPT})
        async with operating(self.store_url, create=True) as (operations, _):
            await operations.submit(info)
        self._paper.line(f"an agent pays {ROUNDS * AT_ONCE} invoices; the run is in the store before it begins")
        for kill in [*self._kills, None]:
            life = await self._live(kill)
            self._lives.append(life)
            if not life.killed:
                break
        return judge(self._lives, Ledger(self._ledger).read())

    async def _live(self, kill: Kill | None) -> Life:
        number = len(self._lives) + 1
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "holdfast.cli.demo.life", self.store_url, str(self._ledger), str(number),
            str(self._pace), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._paper.line()
        self._paper.line(f"life {number}, process {process.pid}", "bold")
        try:
            step = await self._watch(process, kill)
        except BaseException:
            _kill(process)
            raise
        _, complaint = await process.communicate()
        killed = process.returncode == -signal.SIGKILL
        if process.returncode and not killed:
            raise CommandError(f"life {number} ended with {process.returncode}: {complaint.decode()[-500:]}")
        async with opened(self.store_url) as store:
            left = await self._left(store)
        self._tell_end(left, killed=killed)
        return Life(acknowledged=max(0, step - 1), killed=killed, left=left)

    async def _watch(self, process: asyncio.subprocess.Process, kill: Kill | None) -> int:
        """Show what the process tells, kill it when its time has come; the last step it has begun."""
        step, doomed = 0, False
        # A life that ends before it has finished a step is a strike against the run, which then has to wait.
        earliest = (self._lives[-1].left.steps if self._lives else 0) + 2
        async for event in _events(process):
            self._tell_found()
            self._tell(event)
            if event.kind == "step":
                step = event.iteration
            if kill is None or doomed or event.iteration < max(kill.step, earliest):
                continue
            if event.kind == "tool_end" or not kill.half_way:
                doomed = True
                delay = self._chance.uniform(0, _MOMENT if kill.half_way else _STEP) * self._pace
                asyncio.get_running_loop().call_later(delay, _kill, process)
        return step

    async def _left(self, store: CheckpointStore) -> Snapshot:
        return Snapshot.of(await store.load(RUN_ID))

    # -- showing ------------------------------------------------------------------------------------------------

    def _tell(self, event: RunEvent) -> None:
        match event.kind:
            case "resumed" if self._lives:
                before = self._lives[-1].left
                kept = f"{before.replies} answers of the model and {len(before.recorded)} results of tools"
                self._paper.line(f"  goes on after step {event.iteration}: {kept} are kept", "cyan")
            case "step":
                self._paper.line(f"  step {event.iteration:>2}  asks the model", "dim")
            case "tool_start":
                self._paper.line(f"           {event.call_id} starts")
            case "tool_end":
                self._paper.line(f"           {event.call_id} done", "green")

    def _tell_found(self) -> None:
        """Payments in doubt that were looked up since the last time."""
        found = [line.what for line in Ledger(self._ledger).read() if line.deed == "found"]
        for payment in found[self._found :]:
            self._paper.line(f"           {payment} was in doubt: looked up, it had happened, not paid again", "cyan")
        self._found = len(found)

    def _tell_end(self, left: Snapshot, *, killed: bool) -> None:
        if killed:
            doubt = f"; without a result: {', '.join(sorted(left.unanswered))}" if left.unanswered else ""
            self._paper.line(
                f"  killed with SIGKILL. In the store: {left.steps} steps, {len(left.recorded)} results{doubt}",
                "bold red",
            )
        elif left.output is not None:
            self._paper.line(f"  finished: {left.output}", "bold green")


async def _events(process: asyncio.subprocess.Process) -> AsyncIterator[RunEvent]:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=RunEvent)


def _kill(process: asyncio.subprocess.Process) -> None:
    # Not by the process's own method, which would take its exit code away from those who wait for it.
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
