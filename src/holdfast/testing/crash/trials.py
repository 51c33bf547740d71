"""Trials: runs of the tested agent that crash, in stores of their own."""

import contextlib
import itertools
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.testing.crash.judge import Verdict
from holdfast.testing.crash.life import Life, Subject, log_of, notes_of
from holdfast.testing.crash.notes import Acknowledged, AnyNote, Reached, read_notes
from holdfast.testing.crash.process import Nursery
from holdfast.testing.crash.report import CrashTestFailed, Trial
from holdfast.testing.crash.story import Story

#: From the folder of a trial to the URL of an empty store; or a URL in which `{folder}` stands for it.
StoreForTrial = str | Callable[[Path], contextlib.AbstractContextManager[str]]

#: How often a point is tried to be reached. Once is enough, unless the agent's own timing decides what it does.
_ATTEMPTS = 3


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a run can crash."""

    name: str
    marks: Sequence[str]


class _Attempt:
    """One run in a store of its own, through as many lives as it takes."""

    def __init__(self, nursery: Nursery, subject: Subject, url: str, folder: Path) -> None:
        self._nursery, self._subject, self._url, self.folder = nursery, subject, url, folder
        self._lives = 0

    def live(self, *, at: Sequence[str] = (), nth: int | None = None) -> int:
        """Live the next life. Returns how it ended."""
        life = Life(
            number=self._lives, url=self._url, folder=str(self.folder), at=at, nth=nth, accepted=self._accepted()
        )
        self._lives += 1
        return self._nursery.live(life)

    def _accepted(self) -> bool:
        run_id = self._subject.run_id
        return any(isinstance(note, Acknowledged) and note.run_id == run_id for note in self.notes)

    @property
    def notes(self) -> list[AnyNote]:
        return read_notes(notes_of(self.folder))

    @property
    def printed(self) -> str:
        logs = [log_of(self.folder, number) for number in range(self._lives)]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())


class Laboratory:
    """Makes trials of one subject. Any number of threads may use it, each with a nursery of its own."""

    def __init__(self, subject: Subject, store: StoreForTrial, folder: Path) -> None:
        self._subject, self._store, self._folder = subject, store, folder
        self._numbers = itertools.count()
        self._unharmed: Story | None = None

    @contextlib.contextmanager
    def _attempt(self, nursery: Nursery) -> Iterator[_Attempt]:
        folder = self._folder / f"trial-{next(self._numbers)}"
        folder.mkdir()
        place = (
            contextlib.nullcontext(self._store.format(folder=folder))
            if isinstance(self._store, str)
            else self._store(folder)
        )
        with place as url:
            yield _Attempt(nursery, self._subject, url, folder)

    def unharmed(self, nursery: Nursery) -> list[Point]:
        """The crash points of a run that nothing happens to.

        Raises:
            CrashTestFailed: it does not come to its end, does not clean up, or is not the same when it runs again.
        """
        first, points = self._live_unharmed(nursery)
        again, _ = self._live_unharmed(nursery)
        faults = Verdict(again, first, self._subject.run_id).faults
        if faults:
            raise CrashTestFailed(
                "two unharmed runs differ, so a third that crashed cannot be compared with them: give the agent a "
                f"model and tools that do the same every time. {'; '.join(faults)}"
            )
        self._unharmed = first
        return points

    def _live_unharmed(self, nursery: Nursery) -> tuple[Story, list[Point]]:
        with self._attempt(nursery) as attempt:
            code = attempt.live()
            if code != 0:
                raise CrashTestFailed(f"the unharmed run failed ({_told(code)}):\n{attempt.printed}")
            notes = attempt.notes
            story = Story(notes)
            faults = Verdict(story, story, self._subject.run_id).faults
            if faults:
                raise CrashTestFailed(f"the unharmed run is not right: {'; '.join(faults)}")
            points = [Point(name=note.point, marks=note.marks) for note in notes if isinstance(note, Reached)]
            return story, points

    def crash_at(self, nursery: Nursery, point: Point) -> Trial:
        """Crash at this point, recover, compare."""
        for _ in range(_ATTEMPTS):
            with self._attempt(nursery) as attempt:
                code = attempt.live(at=point.marks)
                if code == 0:
                    continue
                if code == -signal.SIGKILL:
                    code = attempt.live()
                return self._judged(attempt, point.name, code, crashes=1)
        return Trial(planned=point.name, landed=(), exact=False, faults=("this point was never reached",))

    def crash_repeatedly(self, nursery: Nursery, plan: Sequence[int]) -> Trial:
        """Crash at the n-th point of each life in turn, as long as lives have so many; then let the run end."""
        planned = f"at points {', '.join(map(str, plan))} of its lives"
        first = plan[0]
        while True:
            with self._attempt(nursery) as attempt:
                code, crashes = attempt.live(nth=first), 0
                if code == 0 and first > 1:
                    first //= 2  # quicker tools, fewer writes, fewer points: there were not so many this time
                    continue
                for nth in [*plan[1:], None]:
                    if code != -signal.SIGKILL:
                        break
                    crashes += 1
                    code = attempt.live(nth=nth)
                return self._judged(attempt, planned, code, crashes)

    def _judged(self, attempt: _Attempt, planned: str, code: int, crashes: int) -> Trial:
        assert self._unharmed is not None, "there is nothing to compare with before the unharmed run"
        story = Story(attempt.notes)
        verdict = Verdict(story, self._unharmed, self._subject.run_id)
        faults = verdict.faults
        if code != 0:
            faults = [f"a process that was not to crash ended by itself ({_told(code)})", *faults]
        if crashes == 0 or len(story.crashes) != crashes:
            # A process that died otherwise than at a point, or that noted a crash and lived on.
            faults = [f"{crashes} processes were killed, {len(story.crashes)} of them where they were to be", *faults]
        return Trial(
            planned=planned,
            landed=tuple(crash.point for crash in story.crashes),
            in_doubt=tuple(sorted(f"{run_id}/{call_id}" for run_id, call_id in verdict.in_doubt)),
            exact=not verdict.diverged,
            faults=tuple(faults),
            printed=attempt.printed if faults else "",
        )


def plans(trials: int, crashes: int, points: int, chance: random.Random) -> list[list[int]]:
    """For each trial, at which point of each life to crash: the first anywhere, the later ones soon."""
    soon = max(1, points // crashes)
    return [[chance.randint(1, points), *(chance.randint(1, soon) for _ in range(crashes - 1))] for _ in range(trials)]


def _told(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
