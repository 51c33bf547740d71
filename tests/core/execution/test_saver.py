"""The saver of an attempt: what it does with each answer of a checkpointer, and which writes are in flight."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.errors import DefinitionError, NotDurable, RunCancelled, RunError, RunLost, SaveFailed
from holdfast.core.execution.saving import Saver
from holdfast.core.execution.stop import StopCause, StopState
from holdfast.core.observer import AttemptControl, ClaimVerified, ObservedEvent, Observers, Saved
from holdfast.core.ports import NullCheckpointer, Transactions
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import MailArrived
from holdfast.core.run.state import RunState
from holdfast.testing.manual_clock import ManualClock

SECOND = timedelta(seconds=1)
LOST = RunLost("another worker owns it")
MAIL = MailArrived("read it first")
BROKEN = OSError("the disk is gone")


class Answers(NullCheckpointer):
    """A host's own checkpointer: remembers what it is asked, and answers with an error, or when a test says so."""

    def __init__(self, error: Exception | None = None, *, transactions: Transactions = "none") -> None:
        self.error, self.asked = error, list[str]()
        self.reached, self.proceed = asyncio.Event(), asyncio.Event()
        self.proceed.set()
        self.transactions = transactions
        self.proven_until = 10.0

    async def save(self, state: RunState, *, force: bool = False) -> None:
        await self._answer("forced" if force else "saved")

    async def verify(self) -> None:
        await self._answer("verified")

    async def _answer(self, what: str) -> None:
        self.asked.append(what)
        self.reached.set()
        await self.proceed.wait()
        if self.error is not None:
            raise self.error


class Watch:
    kinds: frozenset[type] = frozenset({Saved, ClaimVerified})

    def __init__(self) -> None:
        self.seen: list[ObservedEvent] = []

    def begin(self, attempt: AttemptControl) -> "Watch":
        return self

    def observe(self, event: ObservedEvent) -> None:
        self.seen.append(event)


class Saving:
    """A saver with everything that it uses."""

    def __init__(self, checkpointer: Answers | None, *, required: bool = False, new: bool = False) -> None:
        self.clock, self.state, self.watch = ManualClock(), RunState(), Watch()
        self.stop = StopState("r", self.state, self.clock)
        observers = Observers(RunInfo(run_id="r", agent_name="a"), None)
        observers.begin([self.watch], None)  # type: ignore[arg-type]
        self.saver = Saver(
            "r",
            self.state,
            self.stop,
            checkpointer=None if new else checkpointer,
            clock=self.clock,
            observers=observers,
            require_durability=required,
        )
        self.saver.checkpointer = checkpointer

    async def run(self, work: Callable[[], Any], *, own: bool = True) -> Any:
        """Do it in the task of the attempt, or in another one."""

        async def call() -> Any:
            if own:
                self.saver.task = asyncio.current_task()
            return await work()

        return await asyncio.create_task(call())


@pytest.mark.parametrize("own", [True, False], ids=["own task", "other task"])
@pytest.mark.parametrize(
    ("error", "must_succeed", "required", "new", "outcome"),
    [
        (None, False, False, True, True),
        (BROKEN, False, False, False, False),
        (BROKEN, False, False, True, False),
        (BROKEN, True, False, False, SaveFailed),
        (BROKEN, True, False, True, NotDurable),
        (BROKEN, False, True, False, SaveFailed),
        (BROKEN, False, True, True, NotDurable),
        (MAIL, False, False, False, False),
        (MAIL, False, True, False, False),
        (MAIL, True, False, False, MailArrived),
        (LOST, False, False, False, RunLost),
        (LOST, True, True, True, RunLost),
    ],
)
async def test_what_becomes_of_a_save(
    error: Exception | None, must_succeed: bool, required: bool, new: bool, outcome: Any, own: bool
) -> None:
    answers = Answers(error)
    saving = Saving(answers, required=required, new=new)

    async def save() -> bool:
        return await saving.saver.save(must_succeed=must_succeed)

    if isinstance(outcome, bool):
        assert await saving.run(save, own=own) is outcome
    else:
        with pytest.raises(outcome):
            await saving.run(save, own=own)
    assert answers.asked == ["forced" if must_succeed else "saved"]
    assert saving.saver.is_stored is (error is None or not new)
    assert [type(each) for each in saving.watch.seen] == ([Saved] if error is None else [])
    assert not saving.saver.is_waiting_for_store


async def test_a_save_is_forced_if_that_is_asked_for_and_counts_the_time() -> None:
    answers = Answers()
    saving = Saving(answers)
    await saving.clock.advance(3 * SECOND)
    assert await saving.saver.save(force=True) is True
    assert (answers.asked, saving.state.elapsed) == (["forced"], 3 * SECOND)
    await saving.clock.advance(SECOND)
    saving.saver.update_elapsed()
    assert saving.state.elapsed == 4 * SECOND


async def test_a_run_without_a_checkpointer_saves_and_proves_nothing() -> None:
    saving = Saving(None)
    assert await saving.saver.save(must_succeed=True) is True
    await saving.saver.verify()
    assert (saving.watch.seen, saving.saver.is_stored) == ([], False)


@pytest.mark.parametrize("own", [True, False], ids=["own task", "other task"])
@pytest.mark.parametrize(("error", "outcome"), [(None, None), (LOST, RunLost), (BROKEN, SaveFailed)])
async def test_what_becomes_of_a_proof(error: Exception | None, outcome: type[Exception] | None, own: bool) -> None:
    answers = Answers(error)
    saving = Saving(answers)
    await saving.clock.advance(10 * SECOND)
    answers.proven_until = saving.clock.monotonic()  # it is no proof any more
    if outcome is None:
        await saving.run(saving.saver.verify, own=own)
    else:
        with pytest.raises(outcome):
            await saving.run(saving.saver.verify, own=own)
    assert answers.asked == ["verified"]
    assert [type(each) for each in saving.watch.seen] == ([ClaimVerified] if outcome is None else [])
    assert not saving.saver.is_waiting_for_store


async def test_a_claim_that_was_just_proven_is_not_proven_again() -> None:
    answers = Answers(BROKEN)
    saving = Saving(answers)
    answers.proven_until = saving.clock.monotonic() + 1
    await saving.saver.verify()
    assert (answers.asked, saving.watch.seen) == ([], [])


@pytest.mark.parametrize("what", ["save", "verify"])
@pytest.mark.parametrize("own", [True, False], ids=["own task", "other task"])
async def test_a_stop_during_a_write_comes_into_force_after_it_in_the_task_of_the_attempt(what: str, own: bool) -> None:
    answers = Answers()
    answers.proceed.clear()
    answers.proven_until = -1.0
    saving = Saving(answers)
    saver = saving.saver
    waits = [saver.is_waiting_for_store]
    work = asyncio.create_task(saving.run(getattr(saver, what), own=own))
    await answers.reached.wait()
    assert (saver.is_writing, len(saver.background_writes)) == ((True, 0) if own else (False, 1))
    waits.append(saver.is_waiting_for_store)
    assert saving.stop.record(StopCause.STOPPED, RunCancelled("stop"))
    answers.proceed.set()
    if own:
        with pytest.raises(asyncio.CancelledError):
            await work
    else:
        assert await work in (True, None)
    assert len(saving.watch.seen) == 1, "the write was seen through"
    assert [*waits, saver.is_waiting_for_store] == [False, True, False]


async def test_the_writes_in_flight_can_be_cancelled_and_nothing_else_is() -> None:
    answers = Answers()
    answers.proceed.clear()
    saving = Saving(answers)
    saver = saving.saver
    saver.cancel_writes()
    own = asyncio.create_task(saving.run(saver.save))
    await answers.reached.wait()
    answers.reached.clear()
    other = asyncio.create_task(saver.save())
    await answers.reached.wait()

    async def end() -> None:
        await asyncio.Event().wait()

    saver.finalize_task = asyncio.create_task(end())
    saver.cancel_writes()
    await asyncio.wait([own, other, saver.finalize_task])
    assert all(task.cancelled() for task in (own, other, saver.finalize_task))
    assert saver.is_waiting_for_store, "the end of the run"
    saver.finalize_task = None
    saver.task = resting = asyncio.create_task(end())
    saver.cancel_writes()
    await asyncio.sleep(0)
    assert not resting.cancelled(), "it does not write"
    resting.cancel()


@pytest.mark.parametrize(
    ("transactions", "in_thread", "refused"),
    [
        (None, True, "has no transactions"),
        ("none", True, "has no transactions"),
        ("sync", True, ""),
        ("sync", False, "write a plain `def`"),
        ("any", True, ""),
        ("any", False, ""),
    ],
)
def test_the_store_has_to_be_able_to_make_the_transaction_of_a_tool(
    transactions: Any, in_thread: bool, refused: str
) -> None:
    async def check() -> None:
        answers = None if transactions is None else Answers(transactions=transactions)
        Saving(answers).saver.check_transaction("book", in_thread=in_thread)

    if refused:
        with pytest.raises(DefinitionError, match=refused):
            asyncio.run(check())
    else:
        asyncio.run(check())


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("failure", [None, BROKEN, LOST])
def test_the_error_of_a_result_that_the_store_did_not_take(required: bool, failure: Exception | None) -> None:
    state = RunState()
    saver = Saver(
        "r",
        state,
        StopState("r", state, SYSTEM_CLOCK),
        checkpointer=None,
        clock=SYSTEM_CLOCK,
        observers=Observers(RunInfo(run_id="r", agent_name="a"), None),
        require_durability=required,
    )
    error: RunError | None = saver.make_end_error(failure)
    if failure is LOST:
        assert error is LOST
    elif required:
        assert isinstance(error, SaveFailed)
        assert str(error).endswith("the store did not answer" if failure is None else str(failure))
    else:
        assert error is None
