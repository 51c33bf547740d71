"""From ledgers to properties: what each kill repeated, doubled or left unknown."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

#: Over which the growth of the storage is measured.
FURTHER_RUNS = 10


class Trial(NamedTuple):
    """One kill, and what followed."""

    #: Such as `after pay`; empty for the trial without a kill.
    point: str
    #: The ledger at the end.
    effects: Sequence[str]
    #: Whether a restarted process finished the run without being given its id.
    found: bool
    unknown_reported: bool
    #: Whether the same id, given again after the end, returned the result and had no effect.
    result_again: bool

    @property
    def killed_effect(self) -> str:
        return self.point.partition(" ")[2]


class Scores(NamedTuple):
    """How often a property held or was broken, over the trials of one system."""

    trials: int
    found: int
    model_calls_repeated: int
    tool_calls_repeated: int
    payments_doubled: int
    #: For the kills after the payment and before its result was recorded: one.
    unknown_reported: int
    #: Without a kill, with the approval sent twice.
    approval_consumed_once: bool
    result_again: int
    #: By which the storage grows with each further run.
    run_bytes: int


def judge(trials: Sequence[Trial], run_bytes: int) -> Scores:
    """Return the scores of one system. The first trial has no kill.

    The call at which the process was killed was not finished for the system, so its repetition counts only for the
    payment. Every other effect that is in the ledger twice was finished and repeated.
    """
    whole, *killed = trials
    repeated = [effect for trial in killed for effect in list_repeated(trial)]
    return Scores(
        trials=len(killed),
        found=sum(trial.found for trial in killed),
        model_calls_repeated=sum(effect.startswith("model") for effect in repeated),
        tool_calls_repeated=sum(not effect.startswith("model") for effect in repeated),
        payments_doubled=sum(trial.effects.count("pay") > 1 for trial in trials),
        unknown_reported=sum(trial.unknown_reported for trial in killed if trial.point == "after pay"),
        approval_consumed_once=whole.effects.count("pay") == 1,
        result_again=sum(trial.result_again for trial in trials),
        run_bytes=run_bytes,
    )


def list_repeated(trial: Trial) -> list[str]:
    """Return the finished effects that happened more than once."""
    counts = Counter(trial.effects)
    return [effect for effect, count in counts.items() if count > 1 and effect != trial.killed_effect]
