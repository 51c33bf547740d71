"""The audit at the end of a simulated world: every promise, checked against what is known outside of the store."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.app import App
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.scenarios.script_agent import USAGE
from holdfast.testing.simulation.world.booking_checks import BookingChecks
from holdfast.testing.simulation.world.scenario_checks import CHAT, ConversationChecks, check_undo

if TYPE_CHECKING:
    from holdfast.testing.simulation.world.world import World

_TERMINAL = frozenset({"done", "failed", "cancelled"})
_MAX_KILLS = 3
#: Seconds after which a cancel has reached the run, wherever it is executed, if nothing fails.
_CANCEL_S = 6.0


Work = Callable[[App, SimulatedProcess], Coroutine[Any, Any, None]]


def _skip_rewritten(events: list[str]) -> list[str]:
    """Return the events since the last restart of a workflow: those before are no longer stored."""
    restarts = [index for index, event in enumerate(events) if event.startswith("history_rewritten")]
    return events[restarts[-1] + 1 :] if restarts else events


class WorldAudit:
    """Reads the store through an App of its own, which no fault reaches."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._ledger = world.ledger
        self.statuses: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._planned = {run.run_id: run for run in world.plan.runs}
        self._conversations = ConversationChecks(self._ledger)
        #: Freezes, and errors of the disk, may cost an attempt too.
        self._other_strikes = sum("freeze" in fault.kind or "error" in fault.kind for fault in world.plan.faults)

    def report(self, problem: str) -> None:
        self._ledger.problems.append(problem)

    def settle(self, deadline: float) -> None:
        """Answer what waits for a person until all runs have ended, and check what they did."""
        if not self._execute(self._settle, deadline):
            unsettled = {run_id: status for run_id, status in self.statuses.items() if not self._is_settled(run_id)}
            self.report(f"after {deadline} s these runs have not ended: {unsettled} {self._reasons}")
        self._check_ledger()
        self._check_budget()
        for run in self._world.plan.runs:
            if run.agent == "flow":
                check_undo(self._ledger, run, self.statuses.get(run.run_id, ""))

    def check_purge(self, deadline: float) -> None:
        """Wait until the retention of all runs has ended, and see that they are removed."""
        if not self._execute(self._await_purge, deadline):
            self.report(f"the retention of these runs has ended, and they are still stored: {self._list_expired()}")

    async def _await_purge(self, app: App, process: SimulatedProcess) -> None:
        await self._sleep(process, self._world.plan.retention)
        while True:
            await self._list_statuses(app, process)
            if not self._list_expired():
                return
            await self._sleep(process, 10)

    def _list_expired(self) -> list[str]:
        """Return the runs that have ended, without the children of a parked run: it may need them once unparked."""
        parked = tuple(f"{run_id}:" for run_id, status in self.statuses.items() if status == "parked")
        ended = [run_id for run_id, status in self.statuses.items() if status in _TERMINAL]
        return [run_id for run_id in ended if not run_id.startswith(parked)]

    def check_closed(self) -> dict[str, str]:
        """Check the store after all Apps were closed."""
        if not self._execute(self._list_statuses, self._world.scheduler.now + 100):
            self.report("the store cannot be read at the end")
        for run_id, status in self.statuses.items():
            # A killed process leaves a child `running` until its parent resumes, which may wait for a budget.
            if status == "running" and self.statuses.get(run_id.rpartition(":")[0]) not in ("waiting", "parked"):
                self.report(f"run {run_id} is running although all processes have closed")
        return self.statuses

    def _execute(self, work: Work, deadline: float) -> bool:
        world = self._world
        process = world.make_process("audit")
        done: list[bool] = []

        async def main() -> None:
            async with world.make_app(process, works=False) as app:
                await work(app, process)
            done.append(True)

        process.start(main())
        is_done = world.scheduler.run_until(lambda: bool(done) and not process.is_alive, deadline)
        task = process.main
        error = task.exception() if task is not None and task.done() and not task.cancelled() else None
        if error is not None:
            self.report(f"the audit failed: {type(error).__name__}: {error}")
        return is_done

    async def _settle(self, app: App, process: SimulatedProcess) -> None:
        while True:
            await self._list_statuses(app, process)
            if self._world.is_started(self.statuses) and all(map(self._is_settled, self.statuses)):
                break
            await self._world.jobs.answer_all(app, process)
            for run_id, status in list(self.statuses.items()):
                if status == "parked" and not self._is_settled(run_id):
                    await self._world.jobs.resolve(app, run_id)
                elif status == "waiting" and run_id.startswith(CHAT):
                    await self._conversations.close(app, run_id)
            await self._sleep(process, 2)
        for run_id in self.statuses:
            self._check_run(run_id)
        await self._check_watchers(app)
        await self._conversations.check(app, self.statuses)
        if self._world.plan.store == "sqlite":
            await BookingChecks(self._world, self.statuses).check(app)

    async def _sleep(self, process: SimulatedProcess, seconds: float) -> None:
        await process.clock.sleep(timedelta(seconds=seconds))

    async def _list_statuses(self, app: App, process: SimulatedProcess) -> None:
        self.statuses.clear()
        cursor: str | None = None
        while True:
            page = await app.list(limit=50, cursor=cursor)
            for run in page.runs:
                self.statuses[run.run_id] = str(run.status)
                self._reasons[run.run_id] = run.reason
            cursor = page.cursor
            if cursor is None:
                return

    def _is_settled(self, run_id: str) -> bool:
        status, root = self.statuses[run_id], run_id.partition(":")[0]
        if status == "parked":
            return not self._reasons[run_id].startswith("in doubt")
        if status in ("waiting", "interrupted") and self._world.plan.budget and self._is_spent(root):
            return not self._is_cancelled(run_id)
        if status == "waiting" and any(map(self._is_settled, self._list_parked_below(run_id))):
            return True
        # Its parked parent resumes it.
        return status in _TERMINAL or (
            root != run_id and self.statuses.get(root) == "parked" and self._is_settled(root)
        )

    def _is_cancelled(self, run_id: str) -> bool:
        return any(kind == "cancel" and each == run_id for kind, each, _ in self._ledger.acknowledged)

    def _list_parked_below(self, run_id: str) -> list[str]:
        return [each for each, status in self.statuses.items() if status == "parked" and each.startswith(f"{run_id}:")]

    def _is_spent(self, root: str) -> bool:
        """Whether the run, or one below it, waits for its budget."""
        tree = [reason for run_id, reason in self._reasons.items() if run_id.partition(":")[0] == root]
        return any("budget" in reason for reason in tree)

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_run(self, run_id: str) -> None:
        status, reason = self.statuses[run_id], self._reasons[run_id]
        root = self._planned.get(run_id.partition(":")[0])
        is_child = ":" in run_id and not run_id.startswith(CHAT)
        if status == "parked":
            kills = self._ledger.kills - self._ledger.kills_before_step.get(run_id, 0)
            is_poison = reason.startswith("poison") and kills + self._other_strikes >= _MAX_KILLS
            is_spent = reason.startswith("budget") and self._world.plan.budget
            if not is_poison and not is_spent:
                self.report(f"run {run_id} is parked after {kills} kills: {reason}")
        elif status == "failed" and not (root is not None and root.may_fail and not is_child):
            self.report(f"run {run_id} is failed: {reason}")
        elif status == "cancelled" and not self._may_be_cancelled(run_id, is_child=is_child):
            self.report(f"run {run_id} is cancelled: {reason}")

    def _may_be_cancelled(self, run_id: str, *, is_child: bool) -> bool:
        root = run_id.partition(":")[0]
        # A workflow cancels the runs in the background that it has not awaited when it ends.
        is_left = is_child and root in self._planned and self._planned[root].agent == "flow"
        return root in self._world.cancelled or (is_left and run_id not in self._ledger.detached)

    async def _check_watchers(self, app: App) -> None:
        for name, (run_id, events) in list(self._ledger.watched.items()):
            seen = list(events)  # a watcher may still read
            if self.statuses.get(run_id) not in _TERMINAL:
                continue
            rest = await self._read_events(app, run_id, seen[-1][0] if seen else None)
            whole = await self._read_events(app, run_id, None)
            if _skip_rewritten([*(text for _, text in seen), *rest]) != _skip_rewritten(whole):
                self.report(f"watcher {name} saw {[text for _, text in seen]} and {rest} of {whole}")

    async def _read_events(self, app: App, run_id: str, after: str | None) -> list[str]:
        return [
            f"{event.type} {event.cursor}"
            async for event in app.events(run_id, after=after)
            if event.cursor is not None
        ]

    def _check_ledger(self) -> None:
        for kind, run_id, what in self._ledger.acknowledged:
            check = getattr(self, f"_check_{kind}", None)
            if kind == "cancel" and self.statuses.get(run_id, "cancelled") not in _TERMINAL:
                status, reason = self.statuses[run_id], self._reasons[run_id]
                self.report(f"the cancel of run {run_id} was acknowledged, and it is {status}: {reason}")
            if run_id not in self.statuses and kind != "cancel":  # a run that is not stored yet can be cancelled too
                if not self._may_be_purged(run_id):
                    self.report(f"{kind} of run {run_id} was acknowledged, and the run is not in the store")
            elif check is not None and self.statuses.get(run_id) == "done" and not self._has_lost(run_id, what):
                check(run_id, what)

    def _has_lost(self, run_id: str, place: Any) -> bool:
        """Whether a call belongs to a branch of a workflow that has lost a race: its answer is not used."""
        return ".x" in str(place) and place not in self._ledger.seen[run_id]

    def _may_be_purged(self, run_id: str) -> bool:
        last = max(self._ledger.model_calls[run_id], default=0.0)
        return 0 < self._world.plan.retention < self._world.scheduler.now - last

    def _check_budget(self) -> None:
        """Each run may have one step in progress that was not reserved."""
        plan, replies = self._world.plan, self._ledger.replies
        used, runs = len(replies) * USAGE.total_tokens, len({run_id for run_id, _ in replies})
        if plan.budget and used > plan.budget + runs * USAGE.total_tokens:
            self.report(f"{runs} runs have used {used} tokens of {plan.budget}")

    def _check_send(self, run_id: str, text: str) -> None:
        (_, heard), ever = self._ledger.latest_call.get(run_id, (0, [])), self._ledger.ever_heard[run_id]
        count = heard.count(text) or int(text in ever and run_id in self._world.staged)
        if count != 1:
            self.report(f"message {text} was acknowledged, and the model of {run_id} heard it {count} times")

    def _check_approve(self, run_id: str, call_id: str) -> None:
        result = self._get_result(run_id, call_id)
        # An approved call counts as started once its answer is consumed: it is in doubt if its process dies then.
        is_begun = self._ledger.count_begun(run_id, call_id)
        # An interrupt ends the turn of a conversation before its next call.
        if not is_begun and not str(result).startswith(("Unknown outcome", "This call was approved, but its turn")):
            self.report(f"call {call_id} of {run_id} was approved, and never made: {result}")

    def _check_deny(self, run_id: str, call_id: str) -> None:
        if self._ledger.count_begun(run_id, call_id):
            self.report(f"call {call_id} of {run_id} was denied, and made")

    def _check_value(self, run_id: str, call_id: str) -> None:
        if self._get_result(run_id, call_id) != "the answer":
            self.report(f"call {call_id} of {run_id} was answered, and returned {self._get_result(run_id, call_id)!r}")

    def _check_complete(self, run_id: str, call_id: str) -> None:
        if self._get_result(run_id, call_id) != "completed":
            self.report(f"call {call_id} of {run_id} was completed, and returned {self._get_result(run_id, call_id)!r}")

    def _check_cancel(self, run_id: str, at: float) -> None:
        late = [when for when in self._ledger.model_calls[run_id] if when > at + _CANCEL_S]
        if late and not self._world.plan.faults:
            self.report(f"run {run_id} was cancelled at {at:.3f} s, and its model called at {late[0]:.3f} s")

    def _check_output(self, run_id: str, output: str) -> None:
        self._ledger.outputs[run_id].add(output)
        if len(self._ledger.outputs[run_id]) > 1:
            self.report(f"run {run_id} had several outputs: {self._ledger.outputs[run_id]}")

    def _get_result(self, run_id: str, call_id: str) -> Any:
        return self._ledger.results.get(run_id, {}).get(call_id)
