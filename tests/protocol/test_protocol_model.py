"""The protocol between claim, append and effect, as a model small enough to be read, and tried in every order.

A run lives in a store and is driven by one worker after the other. A worker may be paused between any two actions, for
as long as it likes; it may die there; the others may believe it dead although it is only paused. What holds anyway:

1. *Claim.* The worker that drives a run claimed it first, and got a token larger than every one before. From then on
   the run is under that worker's reign.
2. *Append.* Every write carries the token of its worker, and the store refuses one that is not the newest. What was
   acknowledged is durable. A worker that is refused stops, and touches nothing more.
3. *Effect.* Before a `once` tool starts, the intent to call it is in the store; after it, the result is. So the worker
   that resumes finds one of three things: no intent (the call never began: make it), a result (never make it again), or
   an intent alone. Then the call is *in doubt*: the worker before may have died before the effect or after it, or may
   be paused, and about to make it.
4. *In doubt.* Nothing in the store can tell which. Either the model reads that the outcome is unknown, and the call
   is never repeated; that is safe whatever happens. Or the far side is asked (reconcile), and the call is made if it
   did not happen. That is safe where dead is dead, as on one host. Where a paused worker may be taken for a dead one it
   is not, because the paused one may still make its call after the far side was asked: there the far side has to take
   the call's idempotency key, too. A variant below shows it.
5. *Strikes.* Each claim counts one, each finished step clears them, and the claim after the third parks the run.

The machine below runs this with several workers. Its variants each leave one rule out, and must be caught.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

STEPS = 2
MAX_STRIKES = 3

InDoubt = Literal["tell", "reconcile"]

T = TypeVar("T")
#: What a worker does, with a `yield` after each action.
Action = Generator[None, None, T]


class ClaimLost(Exception):
    """The token is not the newest."""


class Entry(NamedTuple):
    kind: Literal["intent", "result"]
    step: int
    outcome: str = ""


class Written(NamedTuple):
    entry: Entry
    #: The token it was written under, and the newest there was at that moment.
    token: int
    newest: int


@dataclass
class Store:
    """Of one run. Every method is atomic."""

    fenced: bool = True
    #: Whether a write is durable when it is acknowledged.
    synced: bool = True
    journal: list[Written] = field(default_factory=list)
    durable: int = 0
    token: int = 0
    #: Whether a worker that is believed alive has the run.
    owned: bool = False
    status: Literal["open", "parked", "done"] = "open"
    strikes: int = 0

    @property
    def is_candidate(self) -> bool:
        """Whether recovery may take the run."""
        return self.status == "open" and not self.owned

    def claim(self) -> int | None:
        """The token of the new owner; `None` if the run was parked instead."""
        self.token += 1
        self.strikes += 1
        if self.strikes > MAX_STRIKES:
            self.status = "parked"
            return None
        self.owned = True
        return self.token

    def append(self, token: int, entry: Entry) -> None:
        self._check(token)
        self.journal.append(Written(entry, token, self.token))
        if self.synced:
            self.durable = len(self.journal)
        if entry.kind == "result":
            self.strikes = 0

    def finish(self, token: int) -> None:
        self._check(token)
        self.status, self.owned = "done", False

    def lose_power(self) -> None:
        del self.journal[self.durable :]

    def _check(self, token: int) -> None:
        if self.fenced and (token != self.token or self.status != "open"):
            raise ClaimLost

    def entries(self) -> dict[tuple[str, int], Entry]:
        return {(written.entry.kind, written.entry.step): written.entry for written in self.journal}


@dataclass
class FarSide:
    """The world, where effects happen."""

    effects: Counter[int] = field(default_factory=Counter)

    def act(self, step: int) -> None:
        self.effects[step] += 1

    def did_it_happen(self, step: int) -> bool:
        return self.effects[step] > 0


@dataclass
class Protocol:
    """What a worker does with a run, action by action."""

    store: Store
    world: FarSide
    in_doubt: InDoubt
    intent_first: bool
    #: What the store has acknowledged to workers.
    acknowledged: list[Entry] = field(default_factory=list)

    def drive(self, token: int) -> Action[None]:
        """From the claim to the end. At every `yield` the worker may be paused indefinitely, or die.

        Raises:
            ClaimLost: the worker noticed that the run is not its own any more.
        """
        known = self.store.entries()
        yield
        for step in range(STEPS):
            if ("result", step) in known:
                continue
            if ("intent", step) in known:
                outcome = yield from self._settle_doubt(step)
            else:
                outcome = yield from self._call(token, step)
            yield from self._append(token, Entry("result", step, outcome))
        self.store.finish(token)

    def _call(self, token: int, step: int) -> Action[str]:
        if self.intent_first:
            yield from self._append(token, Entry("intent", step))
        self.world.act(step)
        yield
        if not self.intent_first:
            yield from self._append(token, Entry("intent", step))
        return "done"

    def _settle_doubt(self, step: int) -> Action[str]:
        if self.in_doubt == "tell":
            return "unknown"
        happened = self.world.did_it_happen(step)
        yield
        if not happened:
            self.world.act(step)
            yield
        return "done"

    def _append(self, token: int, entry: Entry) -> Action[None]:
        self.store.append(token, entry)
        yield  # in the store, and the worker has not heard of it
        self.acknowledged.append(entry)


class Fleet(RuleBasedStateMachine):
    """Workers that share a run, in whatever order hypothesis finds."""

    fenced: ClassVar = True
    synced: ClassVar = True
    intent_first: ClassVar = True
    #: Whether a worker that is only paused may be taken for a dead one although calls in doubt are reconciled.
    reconciles_beside_paused: ClassVar = False

    @initialize(in_doubt=st.sampled_from(["tell", "reconcile"]))
    def submit(self, in_doubt: InDoubt) -> None:
        self.store = Store(fenced=self.fenced, synced=self.synced)
        self.world = FarSide()
        self.protocol = Protocol(self.store, self.world, in_doubt, self.intent_first)
        self.driver: Action[None] | None = None
        #: Believed dead, lost their claim, and do not know it yet.
        self.paused: list[Action[None]] = []

    # -- what may happen ----------------------------------------------------------------------------------------

    @rule()
    @precondition(lambda self: self.store.is_candidate)
    def take(self) -> None:
        """A worker finds the run and claims it."""
        token = self.store.claim()
        self.driver = None if token is None else self.protocol.drive(token)

    @rule(actions=st.integers(1, 6))
    @precondition(lambda self: self.driver is not None)
    def act(self, actions: int) -> None:
        """The worker continues for a while. Until the next call it is paused, between two actions."""
        assert self.driver is not None
        if _advance(self.driver, actions):
            self.driver = None

    @rule()
    @precondition(lambda self: self.driver is not None)
    def die(self) -> None:
        """SIGKILL. What the worker knew is gone; that it is dead is known."""
        self.driver, self.store.owned = None, False

    @rule()
    @precondition(lambda self: self.driver is not None and self._may_be_taken_for_dead)
    def pause_for_too_long(self) -> None:
        """The others believe it dead, and it is not."""
        assert self.driver is not None
        self.paused.append(self.driver)
        self.driver, self.store.owned = None, False

    @property
    def _may_be_taken_for_dead(self) -> bool:
        return self.protocol.in_doubt == "tell" or self.reconciles_beside_paused

    @rule(actions=st.integers(1, 6))
    @precondition(lambda self: self.paused)
    def wake(self, actions: int) -> None:
        """A worker that was believed dead continues as if nothing had happened."""
        if _advance(self.paused[0], actions):
            self.paused.pop(0)

    @rule()
    def lose_power(self) -> None:
        """Every worker dies, and with them all that is not durable."""
        self.store.lose_power()
        self.driver, self.store.owned = None, False
        self.paused.clear()

    @rule()
    @precondition(lambda self: self.store.status == "parked")
    def unpark(self) -> None:
        self.store.status, self.store.strikes = "open", 0

    # -- what holds ---------------------------------------------------------------------------------------------

    @invariant()
    def no_two_owners_write_under_one_reign(self) -> None:
        for written in self.store.journal:
            assert written.token == written.newest, f"two owners: {written}"

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        there = [written.entry for written in self.store.journal]
        lost = [entry for entry in self.protocol.acknowledged if entry not in there]
        assert not lost, f"lost: {lost}"

    @invariant()
    def no_effect_happens_twice(self) -> None:
        assert all(count <= 1 for count in self.world.effects.values()), f"twice: {self.world.effects}"

    @invariant()
    def what_is_reported_done_is_done(self) -> None:
        for (kind, step), entry in self.store.entries().items():
            if kind == "result" and entry.outcome == "done":
                assert self.world.effects[step] > 0, f"reported done and not done: step {step}"

    @invariant()
    def the_run_is_over_driven_or_visible(self) -> None:
        """Whatever happens, the run is over, or a worker drives it, or a listing shows that none does."""
        driven = self.driver is not None
        assert self.store.status != "open" or self.store.is_candidate or driven, f"stranded: {self.store}"

    def teardown(self) -> None:
        """However it stands now: one worker that is left alone brings the run to its end, and no other disturbs it."""
        if not hasattr(self, "store"):
            return
        self.driver, self.store.owned = None, False
        if self.store.status != "done":
            self.store.status, self.store.strikes = "open", 0
            token = self.store.claim()
            assert token is not None
            assert _advance(self.protocol.drive(token), 100)
        assert self.store.status == "done"
        for late in self.paused:
            assert _advance(late, 100), "a worker that lost its claim stops"
        self.no_two_owners_write_under_one_reign()
        self.nothing_acknowledged_is_lost()
        self.no_effect_happens_twice()
        results = [step for kind, step in self.store.entries() if kind == "result"]
        assert sorted(results) == list(range(STEPS))


def _advance(worker: Action[None], actions: int) -> bool:
    """Let the worker do this many actions. True if it has nothing more to do."""
    try:
        for _ in range(actions):
            next(worker)
    except (StopIteration, ClaimLost):
        return True
    return False


class WithoutFence(Fleet):
    fenced = False


class WithoutIntent(Fleet):
    """The effect comes first, and the store hears of it afterwards."""

    intent_first = False


class WithoutSync(Fleet):
    """A write is acknowledged before it is durable."""

    synced = False


class WithPausedWorkers(Fleet):
    """The far side is asked for the outcome of a call while a paused worker is about to make it."""

    reconciles_beside_paused = True


EFFORT = settings(
    max_examples=150,
    stateful_step_count=25,
    deadline=None,
    report_multiple_bugs=False,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_the_protocol_holds_in_every_order() -> None:
    run_state_machine_as_test(Fleet, settings=EFFORT)


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (WithoutFence, "two owners|twice"),
        (WithoutIntent, "twice"),
        (WithoutSync, "lost|reported done and not done|twice"),
        (WithPausedWorkers, "twice"),
    ],
)
def test_a_protocol_without_one_of_its_rules_is_caught(broken: type[Fleet], caught: str) -> None:
    search = settings(EFFORT, max_examples=2000, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=caught):
        run_state_machine_as_test(broken, settings=search)
