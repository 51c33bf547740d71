"""What clients do in a simulated world. A job whose process dies is repeated by another, as by a caller."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.app import App
from holdfast.checkpoint.errors import (
    CheckpointError,
    RunBusy,
    RunEnded,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreError,
)
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN
from holdfast.core.errors import ConversationBusy, NotDurable, RunInterrupted
from holdfast.core.run.run_events import ReaderTooSlow
from holdfast.core.run.waiting import Answer, Approve, Deny, RunWaiting, Value, WaitingCall
from holdfast.db.tables import TablesError
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.runtime.reading.transcript import CallRecord
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.plan import Action, PlannedRun

if TYPE_CHECKING:
    from holdfast.testing.simulation.world.world import World

#: The concurrency key of the runs that a limit is for.
LIMIT_KEY = "limited"

#: How often a client repeats a request.
_MAX_TRIES = 8

#: Errors that say that a later request may succeed.
_RETRIED = (StoreError, RunNotFound, ReaderTooSlow, RunInterrupted, NotDurable, TablesError)


Perform = Callable[["ClientJob", App, SimulatedProcess], Awaitable[None]]


@dataclass(frozen=True)
class Said:
    """An acknowledged message of a conversation, between two steps of the world."""

    action: Action
    asked_at: int
    acknowledged_at: int

    def __str__(self) -> str:
        return self.action.key


@dataclass(eq=False)
class ClientJob:
    """A request of a client, until it is done."""

    name: str
    at: float
    perform: Perform
    #: Whether it ends with its run only.
    waits: bool = False
    #: The id of the run that it starts.
    starts: str = ""
    tries: int = 0
    is_done: bool = False
    #: A process will get it.
    is_scheduled: bool = False


class ClientJobs:
    """The jobs of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._ledger = world.ledger

    def list_jobs(self) -> list[ClientJob]:
        jobs = [self._make_start(run) for run in self._world.plan.runs if run.agent != "talker"]
        for action in self._world.plan.actions:
            perform = getattr(self, f"_make_{action.kind}")(action)
            waits = action.kind in ("watch", "result")
            jobs.append(ClientJob(f"{action.kind} {action.run_id} {action.key}", action.at, perform, waits=waits))
        return jobs

    async def run(self, job: ClientJob, app: App, process: SimulatedProcess) -> None:
        """Do a job in an open App. One that fails is repeated later, possibly by another process."""
        job.tries += 1
        try:
            await job.perform(job, app, process)
        except HoldfastError as exc:
            self._world.note(f"{job.name} failed: {type(exc).__name__}")
            if job.tries < _MAX_TRIES and isinstance(exc, _RETRIED):
                self._world.assign_later(job, 1.0)
                return
        job.is_done = True
        self._world.note(f"{job.name} is done")

    def _acknowledge(self, process: SimulatedProcess, kind: str, run_id: str, what: Any = None) -> None:
        process.check_alive()
        self._ledger.acknowledge(kind, run_id, what)

    # -- kinds --------------------------------------------------------------------------------------------------

    def _make_start(self, run: PlannedRun) -> ClientJob:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            key = LIMIT_KEY if run.is_limited else ""
            if run.waits:
                try:
                    result = await app.run(
                        run.agent, run.prompt, run_id=run.run_id, through_waits=True, concurrency_key=key
                    )
                except RunWaiting:
                    return
                self._acknowledge(process, "submit", run.run_id)
                self._acknowledge(process, "output", run.run_id, str(result.output))
            else:
                await app.submit(run.agent, run.prompt, run_id=run.run_id, concurrency_key=key)
                self._acknowledge(process, "submit", run.run_id)

        return ClientJob(f"start {run.run_id}", run.at, perform, waits=run.waits, starts=run.run_id)

    def _make_send(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            text = f"{action.run_id}/{action.key}"
            await app.send(action.run_id, text, id=text)
            self._acknowledge(process, "send", action.run_id, text)

        return perform

    def _make_signal(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            payload = f"payload of {action.key}"
            await app.signal(action.run_id, action.key, payload, id=f"signal-{action.key}")
            self._acknowledge(process, "signal", action.run_id, action.key)

        return perform

    def _make_answer(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            await self.answer_all(app, process)

        return perform

    async def answer_all(self, app: App, process: SimulatedProcess) -> None:
        """Answer all calls that wait for a person, and complete all deferred ones."""
        for call in await app.pending():
            with contextlib.suppress(NotWaiting, AlreadyAnswered, RunEnded, RunNotFound):
                await self._answer(app, process, call)
        for place, token in list(self._world.tokens.items()):
            run_id, _, call_id = place.rpartition("/")
            try:
                await app.complete_call(token, "completed")
            except (NotWaiting, AlreadyAnswered, RunEnded, RunNotFound):
                continue
            self._acknowledge(process, "complete", run_id, call_id)
            self._world.tokens.pop(place, None)

    async def _answer(self, app: App, process: SimulatedProcess, call: WaitingCall) -> None:
        answer, kind = self._draw_answer(process, call)
        await app.answer(call.run_id, call.call_id, answer)
        self._acknowledge(process, kind, call.run_id, get_place(call))

    def _draw_answer(self, process: SimulatedProcess, call: WaitingCall) -> tuple[Answer, str]:
        if call.kind == "question":
            return Value("the answer"), "value"
        return (Deny(reason="no"), "deny") if process.random.random() < 0.3 else (Approve(), "approve")

    async def resolve(self, app: App, run_id: str) -> None:
        """Unpark a run with calls in doubt, as a person who has looked what happened."""
        resolutions = {
            call.call_id: self._look_up(run_id, get_place(call))
            for call in (await app.get(run_id)).pending_calls
            if call.state == "in doubt"
        }
        self._world.note(f"{run_id}: in doubt is {resolutions}")
        with contextlib.suppress(RunNotClaimable, RunBusy, RunNotFound):
            await app.unpark(run_id, resolutions)

    def _look_up(self, run_id: str, place: str) -> Any:
        if count := self._ledger.look_up(run_id, place):
            return f"{place} done, call {count}"
        # A process that was frozen may still make the call.
        return UNKNOWN if self._ledger.has_zombies else NOT_EXECUTED

    def _make_cancel(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            self._world.cancelled.add(action.run_id)
            await app.cancel(action.run_id)
            self._acknowledge(process, "cancel", action.run_id, self._world.scheduler.now)

        return perform

    def _make_say(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            chat = app.conversation("talker", action.run_id.rpartition(":")[2])
            asked_at = self._ledger.asked_at.setdefault(action.key, self._world.scheduler.steps)
            try:
                await chat.post(action.text, id=action.key, when=action.when)  # type: ignore[arg-type] # drawn of four
            except ConversationBusy:
                return
            self._acknowledge(process, "say", action.run_id, Said(action, asked_at, self._world.scheduler.steps))

        return perform

    def _make_fork(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            fork_id = make_fork_id(action)
            try:
                await app.fork(action.run_id, action.step, new_id=fork_id)
            except RunExists:
                pass
            except (RunNotFound, StoreError):
                raise
            except CheckpointError:
                return  # the run has not got so far
            self._acknowledge(process, "fork", fork_id)

        return perform

    def _make_result(self, action: Action) -> Perform:
        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            result = await app.result(action.run_id, through_waits=True)
            self._acknowledge(process, "output", action.run_id, str(result.output))

        return perform

    def _make_watch(self, action: Action) -> Perform:
        name = f"{action.run_id}/{action.key}"

        async def perform(job: ClientJob, app: App, process: SimulatedProcess) -> None:
            _, seen = self._ledger.watched.setdefault(name, (action.run_id, []))
            limit = process.random.choice((1, 3, 1000))
            stream = app.events(action.run_id, after=seen[-1][0] if seen else None)
            try:
                async for event in stream:
                    process.check_alive()
                    if event.cursor is not None:
                        seen.append((event.cursor, f"{event.type} {event.cursor}"))
                        limit -= 1
                    if limit <= 0:
                        job.is_done = True
                        self._world.assign_later(ClientJob(f"watch {name} again", 0, perform, waits=True), 2.0)
                        return
            finally:
                await stream.aclose()

        return perform


def make_fork_id(action: Action) -> str:
    return f"{action.run_id}-{action.key}"


def get_place(call: WaitingCall | CallRecord) -> str:
    """Return the id of an agent's call, or the place of a workflow's call in its script."""
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    question = str(arguments.get("question", "which?"))
    return str(arguments.get("place") or (call.call_id if question == "which?" else question))


@dataclass
class Assignment:
    """The jobs that a process has to do, and those that it does."""

    process: SimulatedProcess
    app: App | None = None
    waiting: list[ClientJob] = field(default_factory=list)
    tasks: dict[ClientJob, "asyncio.Task[None]"] = field(default_factory=dict)
