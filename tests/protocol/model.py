"""The protocol between claims, writes and effects, as a small model: states that do not change, and moves between them.

A worker claims a run, which gives it a token and shows it the journal. It drives the run through its calls. For each
it writes the intent, starts the effect once the store has acknowledged the intent, and writes the result. Writes
travel: they arrive late, also after their worker is gone. A worker may be stopped between any two moves, may be taken
for dead while it is stopped or merely slow, and may die. Then another claims the run and continues from the journal.

What holds it together are two rules, and each can be taken away to see what it is for:

- the fence: the store refuses a write whose token is not the run's newest;
- the intent first: no effect starts before its intent is acknowledged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What an entry of the journal says about a call, or about the run."""

    INTENT = "intent"
    RESULT = "result"
    #: The model was told that the outcome is unknown.
    UNKNOWN = "unknown"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Entry:
    kind: Kind
    call: int = -1


@dataclass(frozen=True, slots=True)
class Message:
    """A write on its way to the store."""

    worker: int
    run: int
    token: int
    entry: Entry


class Doing(StrEnum):
    """Where a worker is with the run it drives."""

    DECIDING = "deciding"
    #: A write is in flight, or its answer is.
    WAITING = "waiting"
    #: The intent is durable, as far as this worker knows.
    ABOUT_TO_ACT = "about to act"
    #: The effect has happened; its result is nowhere yet.
    ACTED = "acted"


@dataclass(frozen=True, slots=True)
class Driver:
    """A worker's hold on a run."""

    run: int
    token: int
    #: The journal as this worker knows it: what it loaded, and what was acknowledged to it since.
    known: tuple[Entry, ...]
    #: Calls whose intents were in the journal when it was loaded, without a result.
    doubtful: frozenset[int]
    doing: Doing = Doing.DECIDING
    call: int = -1


class Life(StrEnum):
    UP = "up"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the store, and what it did to the world."""

    token: int = 0
    owner: int = -1
    journal: tuple[Entry, ...] = ()
    #: Who wrote each entry, and under which token.
    written_by: tuple[tuple[int, int], ...] = ()
    effects: tuple[int, ...] = ()
    #: Entries that the store has acknowledged to a worker.
    acknowledged: frozenset[Entry] = frozenset()

    @property
    def over(self) -> bool:
        return Entry(Kind.DONE) in self.journal


@dataclass(frozen=True, slots=True)
class Rules:
    """What is modelled. The last two are the rules that hold it together."""

    workers: int = 2
    #: For each run, for each of its calls: whether a call in doubt can be reconciled by looking at the world.
    runs: tuple[tuple[bool, ...], ...] = ((False, False),)
    deaths: int = 1
    #: How often a run may be claimed, where every state is to be visited: without end there would be no end of states.
    claims: int | None = None
    fence: bool = True
    intent_first: bool = True


@dataclass(frozen=True, slots=True)
class State:
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    drivers: tuple[Driver | None, ...]
    #: Whom the store takes to be alive. It may be wrong, either way.
    thought_alive: frozenset[int]
    on_the_way: frozenset[Message] = frozenset()
    deaths: int = 0


def beginning(rules: Rules) -> State:
    return State(
        runs=tuple(Run(effects=(0,) * len(calls)) for calls in rules.runs),
        lives=(Life.UP,) * rules.workers,
        drivers=(None,) * rules.workers,
        thought_alive=frozenset(range(rules.workers)),
    )


def moves(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    for worker, life in enumerate(state.lives):
        if life is Life.UP:
            yield from _claims(state, worker, rules)
            yield from _drives(state, worker, rules)
            yield f"worker {worker} is stopped", _with_life(state, worker, Life.STOPPED)
        if life is Life.STOPPED:
            yield f"worker {worker} is continued", _with_life(state, worker, Life.UP)
        if life is not Life.GONE and state.deaths < rules.deaths:
            dead = replace(_with_life(_with_driver(state, worker, None), worker, Life.GONE), deaths=state.deaths + 1)
            yield f"worker {worker} dies", dead
        if worker in state.thought_alive:
            # Rightly, or because it was not heard of for too long.
            yield f"worker {worker} is taken for dead", replace(state, thought_alive=state.thought_alive - {worker})
        elif life is Life.UP:
            yield f"worker {worker} is heard of again", replace(state, thought_alive=state.thought_alive | {worker})
    for message in state.on_the_way:
        yield f"the write of {message.entry} by worker {message.worker} arrives", _arrive(state, message, rules)


def claimable(state: State, run: Run) -> bool:
    """Not over, and no worker that is taken to be alive owns it."""
    return not run.over and run.owner not in state.thought_alive


def _claims(state: State, worker: int, rules: Rules) -> Iterator[tuple[str, State]]:
    if state.drivers[worker] is not None:
        return
    for number, run in enumerate(state.runs):
        if claimable(state, run) and (rules.claims is None or run.token < rules.claims):
            claimed = replace(run, token=run.token + 1, owner=worker)
            answered = {entry.call for entry in run.journal if entry.kind in (Kind.RESULT, Kind.UNKNOWN)}
            intended = {entry.call for entry in run.journal if entry.kind is Kind.INTENT}
            driver = Driver(number, claimed.token, run.journal, frozenset(intended - answered))
            yield (
                f"worker {worker} claims run {number}",
                _with_driver(_with_run(state, number, claimed), worker, driver),
            )


def _drives(state: State, worker: int, rules: Rules) -> Iterator[tuple[str, State]]:
    driver = state.drivers[worker]
    if driver is None:
        return
    if driver.doing is Doing.DECIDING:
        yield f"worker {worker} decides", _decide(state, worker, driver, rules)
    elif driver.doing is Doing.ABOUT_TO_ACT:
        run = state.runs[driver.run]
        effects = tuple(times + (call == driver.call) for call, times in enumerate(run.effects))
        acted = _with_run(state, driver.run, replace(run, effects=effects))
        yield (
            f"worker {worker} makes call {driver.call} of run {driver.run}",
            _with_driver(acted, worker, replace(driver, doing=Doing.ACTED)),
        )
    elif driver.doing is Doing.ACTED:
        if Entry(Kind.INTENT, driver.call) not in driver.known:
            # Only where the intent need not come first: it comes now.
            yield f"worker {worker} tells what it did", _send(state, worker, driver, Entry(Kind.INTENT, driver.call))
        else:
            yield f"worker {worker} has a result", _send(state, worker, driver, Entry(Kind.RESULT, driver.call))


def _decide(state: State, worker: int, driver: Driver, rules: Rules) -> State:
    """The next thing to do: for the first call without an answer, or to end the run."""
    answered = {entry.call for entry in driver.known if entry.kind in (Kind.RESULT, Kind.UNKNOWN)}
    call = next((call for call in range(len(rules.runs[driver.run])) if call not in answered), None)
    if call is None:
        return _send(state, worker, driver, Entry(Kind.DONE))
    if Entry(Kind.INTENT, call) not in driver.known:
        if rules.intent_first:
            return _send(state, worker, driver, Entry(Kind.INTENT, call))
        return _with_driver(state, worker, replace(driver, doing=Doing.ABOUT_TO_ACT, call=call))
    if call not in driver.doubtful:
        return _with_driver(state, worker, replace(driver, doing=Doing.ABOUT_TO_ACT, call=call))
    if not rules.runs[driver.run][call]:
        return _send(state, worker, driver, Entry(Kind.UNKNOWN, call))
    if state.runs[driver.run].effects[call]:
        return _send(state, worker, driver, Entry(Kind.RESULT, call))
    return _with_driver(state, worker, replace(driver, doing=Doing.ABOUT_TO_ACT, call=call))


def _send(state: State, worker: int, driver: Driver, entry: Entry) -> State:
    message = Message(worker, driver.run, driver.token, entry)
    waiting = _with_driver(state, worker, replace(driver, doing=Doing.WAITING, call=entry.call))
    return replace(waiting, on_the_way=state.on_the_way | {message})


def _arrive(state: State, message: Message, rules: Rules) -> State:
    """The store takes the write or refuses it, and the worker that still waits for the answer gets it."""
    state = replace(state, on_the_way=state.on_the_way - {message})
    run = state.runs[message.run]
    driver = state.drivers[message.worker]
    waits = driver is not None and (driver.run, driver.token) == (message.run, message.token)
    if run.over or (rules.fence and message.token != run.token):
        # It has lost the run: it stops, and writes nothing about it any more.
        return _with_driver(state, message.worker, None) if waits else state
    run = replace(
        run,
        journal=(*run.journal, message.entry),
        written_by=(*run.written_by, (message.token, message.worker)),
        acknowledged=run.acknowledged | {message.entry} if waits else run.acknowledged,
    )
    state = _with_run(state, message.run, run)
    if driver is None or not waits:
        return state
    if message.entry.kind is Kind.DONE:
        return _with_driver(state, message.worker, None)
    doing = Doing.ACTED if not rules.intent_first and message.entry.kind is Kind.INTENT else Doing.DECIDING
    return _with_driver(state, message.worker, replace(driver, known=(*driver.known, message.entry), doing=doing))


def _with_life(state: State, worker: int, life: Life) -> State:
    return replace(state, lives=(*state.lives[:worker], life, *state.lives[worker + 1 :]))


def _with_driver(state: State, worker: int, driver: Driver | None) -> State:
    return replace(state, drivers=(*state.drivers[:worker], driver, *state.drivers[worker + 1 :]))


def _with_run(state: State, number: int, run: Run) -> State:
    return replace(state, runs=(*state.runs[:number], run, *state.runs[number + 1 :]))
