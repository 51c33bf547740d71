"""Faults planted into the product, which the simulator has to find: the text of one function is changed in memory."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from holdfast.batteries.budget import Budget
from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.record import restore_previous
from holdfast.concurrency import shielded
from holdfast.core.execution import turn_cycle
from holdfast.core.execution.calling.background import StartedRuns
from holdfast.core.execution.calling.tool_calls import ToolCalls
from holdfast.core.run.mail import Mailbox
from holdfast.core.workflow.first import Race
from holdfast.core.workflow.undo import Saga
from holdfast.core.workflow.workflow_run import WorkflowRun
from holdfast.db.sqlite_file import set_synchronous
from holdfast.runtime.attach import RunAttacher
from holdfast.runtime.operations.forking import _Forker
from holdfast.runtime.streams.subscription import Subscription
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_run import MemoryRun
from holdfast.stores.sqlite import runs
from holdfast.stores.sqlite.claiming import FairQueue
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.runs import UserTransaction
from holdfast.stores.sqlite.writer import Writer
from holdfast.testing.simulation.plan import StoreKind


@dataclass(frozen=True)
class PlantedFault:
    """Text of a function, and the text that takes its place."""

    function: Callable[..., Any]
    old: str
    new: str
    store: StoreKind
    #: The simulator finds it within this many seeds, counted from zero.
    seeds: int = 100

    @contextmanager
    def planted(self) -> Iterator[None]:
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        source = textwrap.dedent(inspect.getsource(function))
        assert self.old in source, f"{function.__qualname__} has changed: adapt the fault"
        made: dict[str, Any] = {}
        exec(compile(source.replace(self.old, self.new), "planted", "exec"), dict(function.__globals__), made)
        before = function.__code__
        function.__code__ = made[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = before


_CHECK_MAIL = "self._check_mail(release.consumed, release.wake_on)"
#: Ends a transaction of SQLite, and begins another one.
_COMMIT = 'transaction.connection.execute("COMMIT"); transaction.connection.execute("BEGIN IMMEDIATE")'

FAULTS: dict[str, PlantedFault] = {
    "memory: a lost claim still writes": PlantedFault(
        MemoryStore._get_claimed_run, "or run.token != claim.token ", "", "memory", 600
    ),
    "memory: a live owner loses its runs": PlantedFault(
        MemoryStore._has_live_owner, "run.owner in self._workers", "False", "memory"
    ),
    "memory: mail is consumed again": PlantedFault(
        MemoryRun.apply_append, "self.consume(write.consumed)", "pass", "memory"
    ),
    "memory: mail wakes no run": PlantedFault(
        MemoryRun.post, "if self.status is RunStatus.WAITING and", "if False and", "memory"
    ),
    "memory: a run falls asleep on mail": PlantedFault(MemoryRun.apply_release, _CHECK_MAIL, "pass", "memory"),
    "memory: an expiry overwrites an answer": PlantedFault(
        MemoryRun.apply_append,
        "self._check_mail(write.consumed, write.unless_mail)",
        "self._check_mail(write.consumed)",
        "memory",
        400,
    ),
    "memory: a timer never fires": PlantedFault(MemoryRun.is_awake, "self.wake_at <= now", "False", "memory"),
    "memory: mail is accepted and dropped": PlantedFault(
        MemoryRun.post, "self.unread[mail.mail_id] = None", "pass", "memory"
    ),
    "memory: journals lose an entry": PlantedFault(
        MemoryRun.extend, "self.journal.extend(entries)", "self.journal.extend(entries[:1])", "memory"
    ),
    "claims: a clean end costs a strike": PlantedFault(
        restore_previous, "max(0, claim.strikes - 1)", "claim.strikes", "memory", 1000
    ),
    "checkpoint: the watermark stays": PlantedFault(
        StoreCheckpointer._on_saved,
        "self._watermark, self._progress = delta.next_watermark, write.progress",
        "self._progress = write.progress",
        "memory",
    ),
    "checkpoint: consumed mail is kept": PlantedFault(
        StoreCheckpointer._on_saved, "if write.consumed:", "if False:", "memory"
    ),
    "calls: a call in doubt is repeated": PlantedFault(
        ToolCalls._resolve_in_doubt, "return request.error_result(UNKNOWN_OUTCOME)", "return None", "memory"
    ),
    "calls: a once call is not in doubt": PlantedFault(
        ToolCalls.try_execute, "request.call_id in self._in_doubt and request.effect is _ONCE", "False", "memory"
    ),
    "calls: finished calls are repeated": PlantedFault(
        ToolCalls.try_execute, "if request.call_id in state.results:", "if False:", "memory"
    ),
    "attach: a caller spins": PlantedFault(
        RunAttacher._take_or_wait, "await changed.wait(_NOT_DUE_PAUSE)", "pass", "memory"
    ),
    "streams: an event is shown twice": PlantedFault(
        Subscription.accept, "if seq > self.position:", "if seq >= self.position:", "memory"
    ),
    "streams: an event is left out": PlantedFault(
        Subscription.accept, "if seq > self.position:", "if seq > self.position + 1:", "memory"
    ),
    "sqlite: commits are not synced": PlantedFault(set_synchronous, '"FULL" if full else "NORMAL"', '"OFF"', "sqlite"),
    "sqlite: mail wakes no run": PlantedFault(runs.post, "if run.waits_for(mail.topic):", "if False:", "sqlite"),
    "sqlite: a run falls asleep on mail": PlantedFault(
        runs.release,
        "check_mail(claim.run_id, run, release.consumed, release.wake_on, transaction)",
        "pass",
        "sqlite",
    ),
    "sqlite: dead workers count as alive": PlantedFault(
        Liveness._is_row_alive, "self._observe(row) < self._lease_s if known is None else known", "True", "sqlite"
    ),
    "sqlite: workers in other containers never die": PlantedFault(
        Liveness._is_row_alive, "self._observe(row) < self._lease_s", "True", "sqlite"
    ),
    "sqlite: callers resume before the commit": PlantedFault(
        Writer._commit_blocking, "self._commit(requests)", "self._post_to_loop(self._resolve, requests)", "sqlite"
    ),
    "transactions: the record has a second commit": PlantedFault(
        UserTransaction.run, "append(self._claim, call", f"{_COMMIT}; append(self._claim, call", "sqlite"
    ),
    "transactions: the row is committed before the claim is checked": PlantedFault(
        UserTransaction.run,
        "_check_write(self._claim, (), transaction)\n        value = self._call(transaction)",
        f"value = self._call(transaction); {_COMMIT}\n        _check_write(self._claim, (), transaction)",
        "sqlite",
    ),
    "transactions: a cancel does not wait for the commit": PlantedFault(
        Writer.transact, "if not user.is_committing:", "if True:", "sqlite"
    ),
    "memory: the concurrency limit is ignored": PlantedFault(
        MemoryStore.claim_next, "queues, slots,", "queues, type(slots)({}, ()),", "memory", 200
    ),
    "memory: the end of a run notifies no parent": PlantedFault(
        MemoryStore.release, "release.notify) is not None", "release.notify) is None", "memory"
    ),
    "memory: a retention never ends": PlantedFault(MemoryStore.purge, "run.expires_at <= now", "False", "memory"),
    "sqlite: the concurrency limit is ignored": PlantedFault(
        FairQueue._choose, "slots, limit", "type(slots)({}, ()), limit", "sqlite", 400
    ),
    "budget: a limit is not enforced": PlantedFault(Budget.check, "if shortage is not None:", "if False:", "memory"),
    "forks: a step is left out": PlantedFault(
        _Forker.make, "self._find_step(at_step)", "self._find_step(max(1, at_step - 1))", "memory"
    ),
    "conversations: the newest message first": PlantedFault(
        Mailbox.peek, "self.unread.values()", "reversed(self.unread.values())", "memory", 400
    ),
    "conversations: interrupts are ignored": PlantedFault(
        turn_cycle._find_next, "attempt.mailbox.peek(INTERRUPT_TOPIC) or ", "", "memory"
    ),
    "workflow: recorded steps are repeated": PlantedFault(
        WorkflowRun.call, "result = self.find(call)", "result = self.find(call) and None", "memory"
    ),
    "workflow: a store outage is the result of a step": PlantedFault(
        StartedRuns.cancel, 'with _interrupt_on_error(f"run {run_id} could not be cancelled")', "if True", "memory", 400
    ),
    "workflow: the first step is not undone": PlantedFault(
        Saga._undo_steps, "for step, value in steps:", "for step, value in steps[:-1]:", "memory"
    ),
    "workflow: steps are undone in their order": PlantedFault(
        WorkflowRun.list_undoable, "reversed(known)", "known", "memory", 400
    ),
    "workflow: the winner of a race is forgotten": PlantedFault(
        Race.run, "recorded = self._run.find(step)", "recorded = self._run.find(step) and None", "memory", 400
    ),
    "memory: progress clears no strikes": PlantedFault(
        MemoryRun.apply_append, "self.strikes = 0", "pass", "memory", 600
    ),
    "calls: the claim is not verified": PlantedFault(StoreCheckpointer.verify, "range(2)", "range(0)", "memory", 600),
    "calls: an approved call is not saved before it starts": PlantedFault(
        ToolCalls.try_execute, "if has_waited and request.effect is _ONCE:", "if False:", "memory", 200
    ),
    "calls: the result of a once call is not saved at once": PlantedFault(
        ToolCalls._end_call,
        "force = self._attempt, request.effect is _ONCE",
        "force = self._attempt, False",
        "memory",
    ),
    "calls: the results of a step are not saved at once": PlantedFault(
        ToolCalls.end_step, "force = self._has_once_call", "force = False", "memory", 200
    ),
    "calls: a result within a batch is not saved at once": PlantedFault(
        ToolCalls.try_execute, "save(force=request.effect is _ONCE)", "save()", "memory", 400
    ),
    "memory: children are purged before their parents": PlantedFault(
        MemoryStore.purge, "and not self._is_needed_by_parent(run)", "", "memory"
    ),
    "shutdown: a write in flight is cancelled": PlantedFault(
        shielded, "await asyncio.shield(task)", "await task", "sqlite"
    ),
}
