"""What must hold in every state of the model."""

from collections.abc import Iterator
from dataclasses import replace

from tests.protocol.model import Kind, Life, Rules, Run, State, claimable, moves


def broken(state: State, rules: Rules) -> Iterator[str]:
    """The invariants that do not hold in this state."""
    for number, run in enumerate(state.runs):
        yield from _written_by_one_at_a_time(number, run)
        if not run.acknowledged <= set(run.journal):
            yield f"run {number}: an acknowledged entry is lost"
        for call, times in enumerate(run.effects):
            if times > 1 and not rules.runs[number][call]:
                yield f"run {number}: the once effect of call {call} happened {times} times"
        for entry in run.journal:
            if entry.kind is Kind.RESULT and not run.effects[entry.call]:
                yield f"run {number}: call {entry.call} is reported done and never happened"
        if not run.over and not _somebody_looks_after(state, number):
            yield f"run {number} is neither over, nor driven, nor to be found"


def _written_by_one_at_a_time(number: int, run: Run) -> Iterator[str]:
    """A reign is what is written under one token: by one worker, and once another reigns, nothing more."""
    tokens = [token for token, _ in run.written_by]
    if tokens != sorted(tokens):
        yield f"run {number}: an owner whose reign was over has written"
    owners = {token: {worker for its, worker in run.written_by if its == token} for token in tokens}
    if any(len(workers) > 1 for workers in owners.values()):
        yield f"run {number}: two owners have written under one token"
    ends = [entry for entry in run.journal if entry.kind is Kind.DONE]
    if len(ends) > 1 or (ends and run.journal[-1].kind is not Kind.DONE):
        yield f"run {number}: something was written after its end"
    answered = [entry.call for entry in run.journal if entry.kind in (Kind.RESULT, Kind.UNKNOWN)]
    if len(answered) > len(set(answered)):
        yield f"run {number}: a call has two answers"


def _somebody_looks_after(state: State, number: int) -> bool:
    """It can be claimed; or its owner drives it; or its owner is gone or stopped, which the store will come to know."""
    run = state.runs[number]
    if claimable(state, run):
        return True
    if state.lives[run.owner] is not Life.UP:
        return True
    driver = state.drivers[run.owner]
    return driver is not None and (driver.run, driver.token) == (number, run.token)


def end_of(state: State, rules: Rules) -> State:
    """Where the fleet ends up after the faults: no worker is stopped, the store knows who is alive, all continue."""
    up = frozenset(worker for worker, life in enumerate(state.lives) if life is not Life.GONE)
    lives = tuple(Life.GONE if life is Life.GONE else Life.UP for life in state.lives)
    state = replace(state, lives=lives, thought_alive=up, deaths=rules.deaths)
    endless = replace(rules, claims=None)
    while going := [following for label, following in moves(state, endless) if _goes_on(label)]:
        state = going[0]
    return state


def _goes_on(label: str) -> bool:
    return not any(trouble in label for trouble in ("stopped", "dies", "taken for dead", "heard of"))
