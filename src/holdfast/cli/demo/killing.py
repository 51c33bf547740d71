"""The command demo: kills a worker several times, counts what was done, and gives a verdict."""

import asyncio
import logging
import os
import random
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.app import App
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.commands.serving import serve_ui
from holdfast.cli.demo.invoices import (
    AGENT_NAME,
    BATCH_SIZE,
    PROMPT,
    ROUNDS,
    RUN_ID,
    STEPS,
    InvoiceLedger,
    LedgerEntry,
    expected_answer,
)
from holdfast.cli.demo.sample_fleet import add_jobs, build_fleet, keep_submitting
from holdfast.cli.demo.worker_kills import KilledFleet
from holdfast.cli.opening import open_client, open_store
from holdfast.cli.output import CommandError, Output
from holdfast.core.run.run_events import Event, StatusChanged, StepStarted, ToolCalled, ToolReturned
from holdfast.ids import draw_bits
from holdfast.runtime.reading.transcript import Transcript, get_loop_name


class DemoSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The stored run between two attempts."""

    steps: int
    #: Checksums of the journal's entries, by number.
    entries: dict[int, int]
    #: Ids of calls with a recorded result.
    recorded: frozenset[str]
    unanswered: frozenset[str]
    replies: int
    output: str | None

    @classmethod
    def from_stored(cls, stored: StoredRun) -> "DemoSnapshot":
        transcript = Transcript(get_loop_name(stored.record))
        items = transcript.read(stored.entries)
        recorded = frozenset(call.call_id for call in transcript.calls if call.state == "done")
        outcome = [item for item in items if item.kind == "outcome" and not item.error]
        return cls(
            steps=decode(stored.record.progress, Progress).steps,
            entries={entry.seq: entry.checksum() for entry in stored.entries},
            recorded=recorded,
            unanswered=frozenset(call.call_id for call in transcript.calls) - recorded,
            replies=sum(item.kind == "reply" for item in items),
            output=outcome[-1].content if outcome else None,
        )


#: Before the first attempt.
EMPTY_SNAPSHOT = DemoSnapshot(steps=0, entries={}, recorded=frozenset(), unanswered=frozenset(), replies=0, output=None)


class DemoAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One process, after it has ended."""

    #: Steps that the process had reported as finished.
    acknowledged: int
    killed: bool
    snapshot: DemoSnapshot


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the demo."""

    steps: int
    calls: int
    kills: int
    lost: int
    repeated: int
    wrong_answer: bool

    @property
    def passed(self) -> bool:
        return not self.lost and not self.repeated and not self.wrong_answer and self.kills > 0

    def __str__(self) -> str:
        return (
            f"demo: {self.steps} steps, {self.calls} tool calls, {self.kills} kills, "
            f"{self.lost} lost, {self.repeated} repeated"
        )


def check_attempts(attempts: Sequence[DemoAttempt], ledger: Sequence[LedgerEntry]) -> DemoResult:
    """Count what was lost and what was repeated."""
    end = attempts[-1].snapshot
    return DemoResult(
        steps=end.steps,
        calls=len(end.recorded),
        kills=sum(attempt.killed for attempt in attempts),
        lost=count_lost(attempts),
        repeated=count_repeated(attempts, ledger),
        wrong_answer=end.output != expected_answer(),
    )


def count_lost(attempts: Sequence[DemoAttempt]) -> int:
    """Count entries, steps and results that were stored after one attempt and are missing or changed after the next."""
    missing = 0
    for before, after in pairwise(attempt.snapshot for attempt in attempts):
        missing += len(before.entries.items() - after.entries.items())
        missing += len(before.recorded - after.recorded)
        missing += max(0, before.steps - after.steps)
    # Reported as finished, and not in the store.
    missing += sum(max(0, attempt.acknowledged - attempt.snapshot.steps) for attempt in attempts)
    return missing + len(attempts[-1].snapshot.unanswered)


def count_repeated(attempts: Sequence[DemoAttempt], ledger: Sequence[LedgerEntry]) -> int:
    """Count payments that were started twice, and calls and requests that were repeated despite a stored result."""
    count = 0
    paid: set[str] = set()
    for line in ledger:
        before = attempts[line.attempt - 2].snapshot if line.attempt > 1 else EMPTY_SNAPSHOT
        if line.action == "ask":
            count += int(line.what) < before.replies
        elif line.action == "start":
            count += line.what in before.recorded or line.what in paid
            if line.what.startswith("pay-"):
                paid.add(line.what)
    return count


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
        self._attempts: list[DemoAttempt] = []
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
        logging.getLogger("holdfast.worker").setLevel(logging.ERROR)  # the first worker starts after the submit
        async with open_client(self.store_url, create=True) as client:
            await client.submit(AGENT_NAME, PROMPT, run_id=RUN_ID)
        self._output.print_line(f"an agent pays {ROUNDS * BATCH_SIZE} invoices; the run is stored before it starts")
        for kill in [*self._kills, None]:
            attempt = await self._run_attempt(kill)
            self._attempts.append(attempt)
            if not attempt.killed:
                break
        return check_attempts(self._attempts, InvoiceLedger(self._ledger).read())

    async def _run_attempt(self, kill: PlannedKill | None) -> DemoAttempt:
        number = len(self._attempts) + 1
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.cli.demo.invoices",
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
            snapshot = DemoSnapshot.from_stored(await store.load(RUN_ID))
        self._print_end(snapshot, killed=killed)
        return DemoAttempt(acknowledged=max(0, step - 1), killed=killed, snapshot=snapshot)

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
        reconciled = [line.what for line in InvoiceLedger(self._ledger).read() if line.action == "found"]
        for payment in reconciled[self._reconciled_count :]:
            self._output.print_line(f"           {payment} was in doubt: reconciled as paid, not paid again", "cyan")
        self._reconciled_count = len(reconciled)

    def _print_end(self, snapshot: DemoSnapshot, *, killed: bool) -> None:
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


def demo(
    kills: Annotated[int, typer.Option("--kills", metavar="N", min=1, max=MAX_KILLS, help="Number of kills.")] = 5,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of the times of the kills. Default: random.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow the agent down.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the store and the ledger in this folder.")
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Show a small fleet in the browser instead.")] = False,
) -> None:
    """Watch an agent that is killed several times, resumes, and finishes.

    It needs no key and no server: the model follows a script and the store is a temporary SQLite file. SIGKILL comes at
    random times. At the end a ledger outside the store shows what was lost and what was repeated. Exits with 0 only if
    nothing was lost or repeated. With --ui it serves the web UI of a store with runs in every status until Ctrl-C.
    There it kills one of its two worker processes every 30 seconds, and the list of runs says how the other one took
    over.
    """
    seed = draw_bits(16) if seed is None else seed
    output = Output()
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        if ui:
            asyncio.run(_serve_fleet(f"sqlite:{folder / 'runs.db'}"))
            return
        output.print_line(f"seed {seed}: {kills} kills")
        session = Demo(folder, seed, kills, 0.2 if fast else 1.0, output)
        result = asyncio.run(session.run())
        if keep is not None:
            output.print_line(f"inspect the run with: holdfast show demo --store {session.store_url}", "dim")
    output.print_line()
    output.print_line(str(result), "bold green" if result.passed else "bold red")
    sys.exit(0 if result.passed else 1)


async def _serve_fleet(store: str) -> None:
    """Serve the page. The runs are executed by processes of their own, which are killed one after the other."""

    app = build_fleet(store, take_runs=False)
    fleet = KilledFleet(app, store)

    async def work(app: App) -> None:
        await add_jobs(app.schedule)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_submitting(app))
            tasks.create_task(fleet.run())

    await serve_ui(app, 0, work, kill_switch=fleet.switch)
