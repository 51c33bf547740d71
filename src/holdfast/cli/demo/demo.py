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
from holdfast.cli.demo.agent import AGENT_NAME, BATCH_SIZE, PROMPT, ROUNDS, RUN_ID, STEPS, Ledger
from holdfast.cli.demo.check import Attempt, DemoResult, StoreSnapshot, check_attempts
from holdfast.cli.errors import CommandError
from holdfast.cli.output import Output
from holdfast.cli.stores import open_client, open_store
from holdfast.core.info import RunInfo
from holdfast.core.ports import RunEvent

#: About how long a step takes at a pace of 1: a kill comes anywhere within it.
_STEP_SECONDS = 0.4
#: And the time between two results of a batch.
_RESULT_GAP_SECONDS = 0.05

#: Every other step but the last, which only answers.
MAX_KILLS = (STEPS - 1) // 2


class PlannedKill(msgspec.Struct, frozen=True, kw_only=True):
    """When a life ends."""

    #: Within this step, or the next one if that is too soon.
    step: int
    #: Not anywhere within it, but when some calls of a batch have their results and others have not.
    mid_batch: bool


class Demo:
    """One demo in one folder."""

    def __init__(self, folder: Path, seed: int, kills: int, pace: float, output: Output) -> None:
        self.store_url = f"sqlite:{folder / 'runs.db'}"
        self._ledger = folder / "ledger.jsonl"
        self._output, self._pace = output, pace
        self._random = random.Random(seed)  # noqa: S311 - nobody has to be surprised by it
        self._kills = self._plan_kills(kills)
        self._attempts: list[Attempt] = []
        #: How many of the payments that were looked up are told already.
        self._reconciled_count = 0

    def _plan_kills(self, kills: int) -> list[PlannedKill]:
        """When to kill. Between two kills, and before the first, a step is finished; every other one is half-way."""
        chosen = sorted(self._random.sample(range(2, STEPS + 1 - kills), kills))
        turn = self._random.randrange(2)
        return [
            PlannedKill(step=step + place, mid_batch=place % 2 == turn or kills == 1)
            for place, step in enumerate(chosen)
        ]

    async def run(self) -> DemoResult:
        """Everything, from the submission to the count."""
        info = RunInfo(run_id=RUN_ID, agent_name=AGENT_NAME, inputs={"prompt": PROMPT})
        async with open_client(self.store_url, create=True) as (operations, _):
            await operations.submit(info)
        self._output.print_line(
            f"an agent pays {ROUNDS * BATCH_SIZE} invoices; the run is in the store before it begins"
        )
        for kill in [*self._kills, None]:
            life = await self._run_attempt(kill)
            self._attempts.append(life)
            if not life.killed:
                break
        return check_attempts(self._attempts, Ledger(self._ledger).read())

    async def _run_attempt(self, kill: PlannedKill | None) -> Attempt:
        number = len(self._attempts) + 1
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.cli.demo.worker",
            self.store_url,
            str(self._ledger),
            str(number),
            str(self._pace),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._output.print_line()
        self._output.print_line(f"life {number}, process {process.pid}", "bold")
        try:
            step = await self._watch_process(process, kill)
        except BaseException:
            _kill_process(process)
            raise
        _, complaint = await process.communicate()
        killed = process.returncode == -signal.SIGKILL
        if process.returncode and not killed:
            raise CommandError(f"life {number} ended with {process.returncode}: {complaint.decode()[-500:]}")
        async with open_store(self.store_url) as store:
            left = await self._load_snapshot(store)
        self._print_end(left, killed=killed)
        return Attempt(acknowledged=max(0, step - 1), killed=killed, snapshot=left)

    async def _watch_process(self, process: asyncio.subprocess.Process, kill: PlannedKill | None) -> int:
        """Show what the process tells, kill it when its time has come; the last step it has begun."""
        step, doomed = 0, False
        # A life that ends before it has finished a step is a strike against the run, which then has to wait.
        earliest = (self._attempts[-1].snapshot.steps if self._attempts else 0) + 2
        async for event in _read_events(process):
            self._print_reconciled()
            self._print_event(event)
            if event.kind == "step":
                step = event.step
            if kill is None or doomed or event.step < max(kill.step, earliest):
                continue
            if event.kind == "tool_end" or not kill.mid_batch:
                doomed = True
                delay = self._random.uniform(0, _RESULT_GAP_SECONDS if kill.mid_batch else _STEP_SECONDS) * self._pace
                asyncio.get_running_loop().call_later(delay, _kill_process, process)
        return step

    async def _load_snapshot(self, store: CheckpointStore) -> StoreSnapshot:
        return StoreSnapshot.from_stored(await store.load(RUN_ID))

    # -- showing ------------------------------------------------------------------------------------------------

    def _print_event(self, event: RunEvent) -> None:
        match event.kind:
            case "resumed" if self._attempts:
                before = self._attempts[-1].snapshot
                kept = f"{before.replies} answers of the model and {len(before.recorded)} results of tools"
                self._output.print_line(f"  goes on after step {event.step}: {kept} are kept", "cyan")
            case "step":
                self._output.print_line(f"  step {event.step:>2}  asks the model", "dim")
            case "tool_start":
                self._output.print_line(f"           {event.call_id} starts")
            case "tool_end":
                self._output.print_line(f"           {event.call_id} done", "green")

    def _print_reconciled(self) -> None:
        """Payments in doubt that were looked up since the last time."""
        found = [line.what for line in Ledger(self._ledger).read() if line.action == "found"]
        for payment in found[self._reconciled_count :]:
            self._output.print_line(
                f"           {payment} was in doubt: looked up, it had happened, not paid again", "cyan"
            )
        self._reconciled_count = len(found)

    def _print_end(self, snapshot: StoreSnapshot, *, killed: bool) -> None:
        if killed:
            doubt = f"; without a result: {', '.join(sorted(snapshot.unanswered))}" if snapshot.unanswered else ""
            self._output.print_line(
                f"  killed with SIGKILL. In the store: {snapshot.steps} steps, {len(snapshot.recorded)} results{doubt}",
                "bold red",
            )
        elif snapshot.output is not None:
            self._output.print_line(f"  finished: {snapshot.output}", "bold green")


async def _read_events(process: asyncio.subprocess.Process) -> AsyncIterator[RunEvent]:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=RunEvent)


def _kill_process(process: asyncio.subprocess.Process) -> None:
    # Not by the process's own method, which would take its exit code away from those who wait for it.
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
