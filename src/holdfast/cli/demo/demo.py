"""The demo: several attempts in a row, each but the last one killed, and their progress printed."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from holdfast.cli.demo.agent import AGENT_NAME, BATCH_SIZE, PROMPT, ROUNDS, RUN_ID, STEPS, Ledger
from holdfast.cli.demo.check import Attempt, DemoResult, StoreSnapshot, check_attempts
from holdfast.cli.errors import CommandError
from holdfast.cli.output import Output
from holdfast.cli.stores import open_client, open_store
from holdfast.core.events import Event, StatusChanged, StepStarted, ToolCalled, ToolReturned
from holdfast.core.info import RunInfo

#: Approximate duration of a step at a pace of 1. A kill comes at a random time within it.
_STEP_SECONDS = 0.4
#: Approximate time between two results of a batch.
_RESULT_GAP_SECONDS = 0.05

#: One kill for every two steps, except the last step, which has no tool calls.
MAX_KILLS = (STEPS - 1) // 2


class PlannedKill(msgspec.Struct, frozen=True, kw_only=True):
    """When an attempt is killed."""

    #: Within this step, or within the next one if this one is too early.
    step: int
    #: Kill when some calls of a batch have results and others have not, instead of at any time.
    mid_batch: bool


class Demo:
    """One demo, with its files in one folder."""

    def __init__(self, folder: Path, seed: int, kills: int, pace: float, output: Output) -> None:
        self.store_url = f"sqlite:{folder / 'runs.db'}"
        self._ledger = folder / "ledger.jsonl"
        self._output, self._pace = output, pace
        self._random = random.Random(seed)  # noqa: S311 - not for cryptography
        self._kills = self._plan_kills(kills)
        self._attempts: list[Attempt] = []
        #: Number of reconciled payments that were printed.
        self._reconciled_count = 0

    def _plan_kills(self, kills: int) -> list[PlannedKill]:
        """Plan the kills. A step finishes before each of them; every second kill comes within a batch."""
        steps = sorted(self._random.sample(range(2, STEPS + 1 - kills), kills))
        parity = self._random.randrange(2)
        return [
            PlannedKill(step=step + number, mid_batch=number % 2 == parity or kills == 1)
            for number, step in enumerate(steps)
        ]

    async def run(self) -> DemoResult:
        """Submit the run, execute and kill it, and check the result."""
        info = RunInfo(run_id=RUN_ID, agent_name=AGENT_NAME, inputs={"prompt": PROMPT})
        async with open_client(self.store_url, create=True) as (client, _):
            await client.submit(info)
        self._output.print_line(f"an agent pays {ROUNDS * BATCH_SIZE} invoices; the run is stored before it starts")
        for kill in [*self._kills, None]:
            attempt = await self._run_attempt(kill)
            self._attempts.append(attempt)
            if not attempt.killed:
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
        self._output.print_line(f"attempt {number}, process {process.pid}", "bold")
        try:
            step = await self._watch_process(process, kill)
        except BaseException:
            _kill_process(process)
            raise
        _, stderr = await process.communicate()
        killed = process.returncode == -signal.SIGKILL
        if process.returncode and not killed:
            raise CommandError(f"attempt {number} exited with {process.returncode}: {stderr.decode()[-500:]}")
        async with open_store(self.store_url) as store:
            snapshot = StoreSnapshot.from_stored(await store.load(RUN_ID))
        self._print_end(snapshot, killed=killed)
        return Attempt(acknowledged=max(0, step - 1), killed=killed, snapshot=snapshot)

    async def _watch_process(self, process: asyncio.subprocess.Process, kill: PlannedKill | None) -> int:
        """Print the events of the process and kill it as planned. Return the last step that it started."""
        step, kill_scheduled = 0, False
        # An attempt that dies before it has finished a step counts as a strike and delays the next one by a backoff.
        earliest = (self._attempts[-1].snapshot.steps if self._attempts else 0) + 2
        async for event in _read_events(process):
            self._print_reconciled()
            self._print_event(event)
            if isinstance(event, StepStarted):
                step = event.step
            if kill is None or kill_scheduled or event.step < max(kill.step, earliest):
                continue
            if isinstance(event, ToolReturned) or not kill.mid_batch:
                kill_scheduled = True
                delay = self._random.uniform(0, _RESULT_GAP_SECONDS if kill.mid_batch else _STEP_SECONDS) * self._pace
                asyncio.get_running_loop().call_later(delay, _kill_process, process)
        return step

    # -- printing -----------------------------------------------------------------------------------------------

    def _print_event(self, event: Event) -> None:
        match event:
            case StatusChanged() if event.resumed and self._attempts:
                before = self._attempts[-1].snapshot
                reused = f"{before.replies} model replies and {len(before.recorded)} tool results"
                self._output.print_line(f"  resumed after step {event.step}: {reused} are not repeated", "cyan")
            case StepStarted():
                self._output.print_line(f"  step {event.step:>2}  asking the model", "dim")
            case ToolCalled():
                self._output.print_line(f"           {event.call_id} started")
            case ToolReturned():
                self._output.print_line(f"           {event.call_id} done", "green")

    def _print_reconciled(self) -> None:
        """Print the payments in doubt that were reconciled since the last call."""
        reconciled = [line.what for line in Ledger(self._ledger).read() if line.action == "found"]
        for payment in reconciled[self._reconciled_count :]:
            self._output.print_line(f"           {payment} was in doubt: reconciled as paid, not paid again", "cyan")
        self._reconciled_count = len(reconciled)

    def _print_end(self, snapshot: StoreSnapshot, *, killed: bool) -> None:
        if killed:
            doubt = f"; without a result: {', '.join(sorted(snapshot.unanswered))}" if snapshot.unanswered else ""
            self._output.print_line(
                f"  killed with SIGKILL. In the store: {snapshot.steps} steps, {len(snapshot.recorded)} results{doubt}",
                "bold red",
            )
        elif snapshot.output is not None:
            self._output.print_line(f"  finished: {snapshot.output}", "bold green")


async def _read_events(process: asyncio.subprocess.Process) -> AsyncIterator[Event]:
    assert process.stdout is not None  # it is a pipe
    async for line in process.stdout:
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=Event)


def _kill_process(process: asyncio.subprocess.Process) -> None:
    # Process.kill would reap the exit code that `communicate` waits for.
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
