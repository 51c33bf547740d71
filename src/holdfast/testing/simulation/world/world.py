"""A simulated world: processes on one store, clients, faults, and an audit at its end."""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.app import App
from holdfast.batteries.budget import Budget, Limit
from holdfast.checkpoint.store import RunStore
from holdfast.config import CheckpointSettings, ConcurrencyLimit, Retention, WorkerSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.testing.simulation.machine.backends import MemoryBackend, SqliteBackend
from holdfast.testing.simulation.machine.process import SimulatedProcess, Surroundings
from holdfast.testing.simulation.machine.scheduler import Scheduler, Stuck
from holdfast.testing.simulation.plan import Fault, FaultKind, Plan
from holdfast.testing.simulation.scenarios.recorded_tools import record_effects
from holdfast.testing.simulation.scenarios.script_agent import ScriptedAgent
from holdfast.testing.simulation.scenarios.script_tools import SCRIPTED, ScriptedProcess
from holdfast.testing.simulation.scenarios.script_workflow import WORKFLOW
from holdfast.testing.simulation.world.client_jobs import LIMIT_KEY, Assignment, ClientJob, ClientJobs, make_fork_id
from holdfast.testing.simulation.world.world_audit import WorldAudit
from holdfast.testing.simulation.world_ledger import WorldLedger

#: Virtual seconds until all clients have to be served, and until all runs have to end after that.
_BUSY_S, _SETTLE_S, _CLOSE_S = 600.0, 600.0, 300.0
#: Virtual seconds after its retention until a run has to be removed.
_PURGE_S = 120.0
_MAX_STEPS = 100_000
_RESTART_S = 1.5
#: Steps after a call begins within which its process is killed or frozen.
_CALL_STEPS = 12
_AGENTS: list[AgentSource] = [*map(ScriptedAgent, ("actor", "staged", "talker")), WORKFLOW]


@dataclass(slots=True)
class WorldOutcome:
    """The end of one world."""

    plan: Plan
    problems: list[str]
    trace: list[str]
    steps: int
    kills: int = 0
    statuses: dict[str, str] = field(default_factory=dict)


#: Makes the App of a process on a store.
AppFactory = Callable[[RunStore], App]


class World:
    """Executes a plan."""

    def __init__(self, plan: Plan, app_factory: AppFactory | None = None) -> None:
        """Make the world. Without a factory its agents are scripted."""
        self.plan = plan
        self._app_factory = app_factory
        self.scheduler = Scheduler(
            plan.seed, 4 * _MAX_STEPS if plan.disk_delay else _MAX_STEPS
        )  # processes poll its locks
        self.scheduler.before_step = self._before_step
        kinds = {fault.kind for fault in plan.faults}
        has_zombies = bool(kinds & {"freeze", "call_freeze"})
        is_delayed = has_zombies or bool(kinds & {"slow_store", "failing_store"}) or plan.store == "sqlite"
        self.ledger = WorldLedger(self.scheduler, has_zombies, saves_immediately=not is_delayed)
        #: Completion tokens, by run and call.
        self.tokens: dict[str, str] = {}
        #: Runs that a client wanted to cancel.
        self.cancelled: set[str] = set()
        self.staged = {run.run_id for run in plan.runs if run.agent == "staged"}
        self._limits = [ConcurrencyLimit(key=LIMIT_KEY, max_runs=plan.limit)] if plan.limit else []
        self.ledger.limit = plan.limit
        self.ledger.on_call = self._on_call
        self.ledger.limited = frozenset(run.run_id for run in plan.runs if run.is_limited)
        self.ledger.forks = {make_fork_id(each): each.step for each in plan.actions if each.kind == "fork"}
        self._surroundings = Surroundings(self.scheduler, plan.seed, by_lease=plan.by_lease)
        backend = SqliteBackend if plan.store == "sqlite" else MemoryBackend
        self.backend = backend(self.scheduler, plan)
        self.assignments: list[Assignment] = []
        self._dead: list[SimulatedProcess] = []
        self._faults = list(plan.faults)
        self._next_fault = self._faults[0].step if self._faults else sys.maxsize
        #: Faults of the process that calls a model or a tool next.
        self._call_faults: list[Fault] = []
        self.jobs = ClientJobs(self)
        #: No further faults; no further processes.
        self._is_ending = self._is_closing = False

    def note(self, text: str) -> None:
        self.ledger.note(text)

    # -- processes ----------------------------------------------------------------------------------------------

    def make_process(self, name: str, skew: float = 0.0) -> SimulatedProcess:
        process = SimulatedProcess(name, self._surroundings, timedelta(seconds=skew))
        process.on_death.append(self._dead.append)
        if self._app_factory is None:
            process.bind(SCRIPTED, ScriptedProcess(process, self.ledger, self.tokens, self.plan))
        return process

    def spawn(self, slot: int) -> SimulatedProcess:
        """Start the process of a slot, or a new one after its death."""
        skews = self.plan.skews
        process = self.make_process(f"p{slot}", skews[slot] if slot < len(skews) else 0.0)
        assignment = Assignment(process)
        if slot < len(self.assignments):
            self.assignments[slot] = assignment
        else:
            self.assignments.append(assignment)
        self.note(f"{process.name} starts")
        process.start(self._drive(assignment))
        return process

    def make_app(self, process: SimulatedProcess, *, works: bool = True) -> App:
        store = self.backend.connect(process)
        settings = WorkerSettings(take_runs=works, handle_signals=False, concurrency_limits=self._limits)
        if self._app_factory is not None:
            app = self._app_factory(store)
            return app.replace(agents=record_effects(app.agents.values(), process, self.ledger), worker=settings)
        kept = timedelta(seconds=self.plan.retention)
        retention = Retention(done=kept, failed=kept, cancelled=kept) if kept else Retention()
        return App(
            _AGENTS,
            store,
            worker=settings,
            checkpoint=CheckpointSettings(
                retention=retention, save_interval=timedelta(seconds=self.plan.save_interval)
            ),
            budget=Budget(Limit(tokens=self.plan.budget, per="all")) if self.plan.budget else None,
        )

    async def _drive(self, assignment: Assignment) -> None:
        """The main coroutine of a process."""
        async with self.make_app(assignment.process) as app:
            assignment.app = app
            for job in list(assignment.waiting):
                self._start_job(job, assignment)
            if not self._is_closing:
                await app.serve()
        self.note(f"{assignment.process.name} has closed")

    def close_process(self, assignment: Assignment) -> None:
        """Close the App of a process in good order."""
        process, app = assignment.process, assignment.app
        if app is not None:
            process.loop.call_soon(lambda: process.loop.create_task(_shut_down(app)), context=process.copy_context())

    # -- jobs ---------------------------------------------------------------------------------------------------

    def assign(self, job: ClientJob) -> None:
        """Give the job to a process, which the seed chooses."""
        job.is_scheduled = False
        assignment = self.assignments[int(self.scheduler.draw() * self.plan.processes)]
        process = assignment.process
        if not process.is_alive:
            self.assign_later(job, 0.5)
            return
        assignment.waiting.append(job)
        if assignment.app is not None:
            process.loop.call_soon(self._start_job, job, assignment, context=process.copy_context())

    def assign_later(self, job: ClientJob, delay: float) -> None:
        if job.is_scheduled:
            return
        job.is_scheduled = True
        if job not in self._jobs:
            self._jobs.append(job)
        self.scheduler.call_at(self.scheduler.now + delay, lambda: self.assign(job), None)

    def _start_job(self, job: ClientJob, assignment: Assignment) -> None:
        if assignment.app is None or job not in assignment.waiting:
            return
        assignment.waiting.remove(job)
        task = assignment.process.loop.create_task(self.jobs.run(job, assignment.app, assignment.process))
        assignment.tasks[job] = task
        task.add_done_callback(lambda task: self._on_job_done(job, assignment, task))

    def _on_job_done(self, job: ClientJob, assignment: Assignment, task: "asyncio.Task[None]") -> None:
        assignment.tasks.pop(job, None)
        if task.cancelled():
            self.assign_later(job, 1.0)
        elif (error := task.exception()) is not None:
            self.ledger.problems.append(f"{job.name} raised {type(error).__name__}: {error}")
            job.is_done = True

    # -- faults -------------------------------------------------------------------------------------------------

    def _before_step(self) -> None:
        if self.scheduler.steps >= self._next_fault and not self._is_ending:
            fault = self._faults.pop(0)
            self._next_fault = self._faults[0].step if self._faults else sys.maxsize
            self._inject(fault)
        while self._dead:
            self._bury(self._dead.pop())

    def _inject(self, fault: Fault) -> None:
        assignment = self.assignments[fault.target % len(self.assignments)]
        process = assignment.process
        self.note(f"fault {fault.kind} of {process.name} at step {self.scheduler.steps}")
        if fault.kind == "kill":
            process.kill()
        elif fault.kind == "freeze":
            self._freeze(process, 0.5 + fault.amount**2 * 20)
        elif fault.kind == "close":
            self.close_process(assignment)
        elif fault.kind == "end_loop":
            process.end_event_loop()
        elif fault.kind == "cancel_all":
            process.cancel_all_tasks()
        elif fault.kind == "clock_jump":
            process.clock.skew += timedelta(seconds=(fault.amount - 0.5) * 20)
        elif fault.kind == "power_cut":
            self._cut_power(fault)
        elif fault.kind in ("call_kill", "call_freeze"):
            self._call_faults.append(fault)
        else:
            self.backend.inject(fault)

    def _on_call(self) -> None:
        """A model or a tool is called. A fault that waits for that comes some steps later."""
        if not self._call_faults:
            return
        fault = self._call_faults.pop(0)
        step = self.scheduler.steps + 1 + int(self.scheduler.draw() * _CALL_STEPS)
        slot = [each.process for each in self.assignments].index(self.scheduler.process)  # type: ignore[arg-type]
        kind: FaultKind = "kill" if fault.kind == "call_kill" else "freeze"
        self._faults.append(replace(fault, kind=kind, step=step, target=slot))
        self._faults.sort(key=lambda fault: fault.step)
        self._next_fault = self._faults[0].step

    def _freeze(self, process: SimulatedProcess, seconds: float) -> None:
        if process.is_alive and not process.is_frozen:
            process.freeze()
            self.backend.on_freeze(process)
            self.scheduler.call_at(self.scheduler.now + seconds, lambda: self._thaw(process), None)

    def _thaw(self, process: SimulatedProcess) -> None:
        if process.is_alive and process.is_frozen:
            self.note(f"{process.name} thaws")
            process.thaw()
            self.backend.on_thaw(process)

    def _cut_power(self, fault: Fault) -> None:
        for assignment in self.assignments:
            assignment.process.kill()
        while self._dead:
            self._bury(self._dead.pop())
        self.backend.cut_power(fault)

    def _bury(self, process: SimulatedProcess) -> None:
        process.bury()
        self.ledger.forget_process(process.number)
        self.backend.on_death(process)
        has_ended = process.loop.has_ended
        self.note(f"{process.name} {'has ended' if has_ended else 'was killed'}")
        self.ledger.kills += not has_ended
        for slot, assignment in enumerate(self.assignments):
            if assignment.process is process:
                for job in [job for job in (*assignment.waiting, *assignment.tasks) if not job.is_done]:
                    self.assign_later(job, 1.0 + self.scheduler.draw())
                if not self._is_closing:
                    self.scheduler.call_at(
                        self.scheduler.now + _RESTART_S * self.scheduler.draw(),
                        partial(self._respawn, slot),
                        None,
                    )

    def _respawn(self, slot: int) -> None:
        if not self.assignments[slot].process.is_alive and not self._is_closing:
            self.spawn(slot)

    # -- the whole ----------------------------------------------------------------------------------------------

    def run(self) -> WorldOutcome:
        """Execute the plan to its end, and audit it."""
        # The garbage collector would run the `finally` blocks of the dead at moments that no seed decides.
        gc.disable()
        gc.freeze()
        hooks, report = sys.get_asyncgen_hooks(), sys.unraisablehook
        sys.set_asyncgen_hooks(firstiter=self._add_generator, finalizer=self._finalize_generator)
        logging.disable(logging.CRITICAL)
        statuses: dict[str, str] = {}
        try:
            with self.backend:
                statuses = self._run()
        except Stuck as exc:
            self.ledger.problems.append(f"stuck: {exc}")
        finally:
            sys.unraisablehook = _ignore
            self._end_all()
            sys.unraisablehook = report
            logging.disable(logging.NOTSET)
            sys.set_asyncgen_hooks(*hooks)
            gc.unfreeze()
            gc.enable()
        return WorldOutcome(
            self.plan, self.ledger.problems, self.ledger.trace, self.scheduler.steps, self.ledger.kills, statuses
        )

    def _run(self) -> dict[str, str]:
        for slot in range(self.plan.processes):
            self.spawn(slot)
        self._jobs = self.jobs.list_jobs()
        self._unserved = [job for job in self._jobs if not job.waits]
        for job in list(self._jobs):
            self.scheduler.call_at(job.at, partial(self.assign, job), None)
        audit = WorldAudit(self)
        if not self.scheduler.run_until(self._is_served, _BUSY_S):
            waiting = [job.name for job in self._jobs if not job.is_done]
            audit.report(f"after {_BUSY_S} s these requests have no answer: {waiting}")
        self._is_ending = True
        self.backend.heal()
        for slot, assignment in enumerate(self.assignments):
            self._thaw(assignment.process)
            if not assignment.process.is_alive:
                self.spawn(slot)
        audit.settle(self.scheduler.now + _SETTLE_S)
        if self.plan.retention:
            audit.check_purge(self.scheduler.now + self.plan.retention + _PURGE_S)
        self._is_closing = True
        for assignment in self.assignments:
            self.close_process(assignment)
        is_closed = self.scheduler.run_until(self._are_all_dead, self.scheduler.now + _CLOSE_S)
        if not is_closed:
            alive = [assignment.process.name for assignment in self.assignments if assignment.process.is_alive]
            audit.report(f"after {_CLOSE_S} s these processes have not closed: {alive}")
        return audit.check_closed()

    def is_started(self, stored: Collection[str]) -> bool:
        """Whether all clients that start a run have done so, or given up, given the runs that are stored."""
        return all(job.is_done or job.starts in stored for job in self._jobs if job.starts)

    def _is_served(self) -> bool:
        unserved = self._unserved
        while unserved and unserved[-1].is_done:
            unserved.pop()
        return not unserved

    def _are_all_dead(self) -> bool:
        return not any(assignment.process.is_alive for assignment in self.assignments)

    def _end_all(self) -> None:
        """Free all that the processes hold. They are dead, so that what their `finally` blocks do has no effect."""
        for process in self._surroundings.table.values():
            process.kill()
            process.bury()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that were never awaited
            for process in self._surroundings.table.values():
                process.forget()
            self.assignments.clear()
            self._surroundings.table.clear()
            self.scheduler.clear()
            gc.collect()

    def _add_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if (process := self.scheduler.process) is not None:
            process.loop.add_generator(generator)

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        if (process := self.scheduler.process) is not None:
            process.loop.finalize_generator(generator)


def _ignore(error: object) -> None:
    """Say nothing of what a dead process raises when its coroutines are closed."""


async def _shut_down(app: App) -> None:
    await app.shutdown()
