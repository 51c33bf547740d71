"""What a crash test found."""

from dataclasses import dataclass

from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run that crashed, once or several times, and what became of it."""

    #: Where it was to crash; for several crashes, the numbers of the points in each life.
    planned: str
    #: Where it did, each proven by a note of the process and by its death.
    landed: tuple[str, ...]
    #: Calls of `once` tools that were in doubt afterwards, as `run/call`.
    in_doubt: tuple[str, ...] = ()
    #: The transcripts are those of the unharmed run, to the last message.
    exact: bool = True
    #: What is wrong. Nothing, if the promises hold.
    faults: tuple[str, ...] = ()
    #: What the processes printed, if something is wrong.
    printed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """All trials of one agent."""

    agent: str
    #: The crash points of the unharmed run, by name, in their order.
    points: tuple[str, ...]
    trials: tuple[Trial, ...]
    #: With which trials were chosen.
    seed: int

    @property
    def failed(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.faults)

    @property
    def crashes(self) -> int:
        """How many times a process was killed."""
        return sum(len(trial.landed) for trial in self.trials)

    @property
    def exact(self) -> int:
        return sum(trial.exact and not trial.faults for trial in self.trials)

    @property
    def in_doubt(self) -> int:
        """Trials with a call in doubt."""
        return sum(bool(trial.in_doubt) for trial in self.trials)

    def __str__(self) -> str:
        told = (
            f"{self.agent}: {len(self.points)} crash points, {len(self.trials)} trials, {self.crashes} crashes landed "
            f"(seed {self.seed}); {self.exact} went on exactly as the unharmed run, {self.in_doubt} had a call in "
            f"doubt, {len(self.failed)} failed"
        )
        lines = [
            f"- crashed {' and then '.join(trial.landed) or trial.planned}:\n" + _indented(trial)
            for trial in self.failed
        ]
        return "\n".join([told, *lines])


def _indented(trial: Trial) -> str:
    printed = ["the processes printed:", *trial.printed.splitlines()[-40:]] if trial.printed else []
    return "\n".join(f"    {line}" for line in [*trial.faults, *printed])


class CrashTestFailed(HoldfastError, AssertionError):
    """The agent does not survive all its crashes, or could not be tested. The report says where."""

    def __init__(self, message: str, report: CrashReport | None = None) -> None:
        super().__init__(message)
        self.report = report
