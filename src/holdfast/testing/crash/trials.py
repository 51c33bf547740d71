"""The tester's side of a nursery.

Trials: runs of the tested agent that crash, in stores of their own.

Kills an agent everywhere, and sees whether it goes on.
"""

import contextlib
import itertools
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec

from holdfast.stores.url import store_from_url
from holdfast.testing.crash.attempt import (
    Attempt,
    AttemptResult,
    CrashTestConfig,
    find_import_path,
    get_events_path,
    get_log_path,
)
from holdfast.testing.crash.checks import CrashReport, CrashTestFailed, Trial, TrialCheck
from holdfast.testing.crash.events import AnyEvent, PointReachedEvent, WriteAcknowledgedEvent, read_events
from holdfast.testing.crash.timeline import Timeline


class WorkerProcess:
    """A process that lives one life of the subject after another, each in a child of its own."""

    def __init__(self, config: CrashTestConfig) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.testing.crash.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send(config)

    def run_attempt(self, attempt: Attempt) -> int:
        """Returns when that life is over: its exit code, or below zero the signal that ended it."""
        self._send(attempt)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise CrashTestFailed(f"the process that starts the trials ended with {self._process.wait()}")
        return msgspec.json.decode(answer, type=AttemptResult).exit_code

    def _send(self, message: CrashTestConfig | Attempt) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


#: From the folder of a trial to the URL of an empty store; or a URL in which `{folder}` stands for it.
TrialStore = str | Callable[[Path], contextlib.AbstractContextManager[str]]

#: How often a point is tried to be reached. Once is enough, unless the agent's own timing decides what it does.
_MAX_TRIES = 3


class CrashPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a run can crash."""

    name: str
    marks: Sequence[str]


class _TrialRun:
    """One run in a store of its own, through as many lives as it takes."""

    def __init__(self, process: WorkerProcess, config: CrashTestConfig, url: str, folder: Path) -> None:
        self._process, self._config, self._url, self.folder = process, config, url, folder
        self._attempt_count = 0

    def run_attempt(self, *, crash_at: Sequence[str] = (), crash_at_nth: int | None = None) -> int:
        """Live the next life. Returns how it ended."""
        life = Attempt(
            number=self._attempt_count,
            url=self._url,
            folder=str(self.folder),
            crash_at=crash_at,
            crash_at_nth=crash_at_nth,
            run_acknowledged=self._is_run_acknowledged(),
        )
        self._attempt_count += 1
        return self._process.run_attempt(life)

    def _is_run_acknowledged(self) -> bool:
        run_id = self._config.run_id
        return any(isinstance(note, WriteAcknowledgedEvent) and note.run_id == run_id for note in self.events)

    @property
    def events(self) -> list[AnyEvent]:
        return read_events(get_events_path(self.folder))

    @property
    def process_output(self) -> str:
        logs = [get_log_path(self.folder, number) for number in range(self._attempt_count)]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())


class TrialRunner:
    """Makes trials of one subject. Any number of threads may use it, each with a nursery of its own."""

    def __init__(self, config: CrashTestConfig, store: TrialStore, folder: Path) -> None:
        self._config, self._store, self._folder = config, store, folder
        self._trial_numbers = itertools.count()
        self._baseline: Timeline | None = None

    @contextlib.contextmanager
    def _open_trial(self, process: WorkerProcess) -> Iterator[_TrialRun]:
        folder = self._folder / f"trial-{next(self._trial_numbers)}"
        folder.mkdir()
        place = (
            contextlib.nullcontext(self._store.format(folder=folder))
            if isinstance(self._store, str)
            else self._store(folder)
        )
        with place as url:
            yield _TrialRun(process, self._config, url, folder)

    def run_baseline(self, process: WorkerProcess) -> list[CrashPoint]:
        """The crash points of a run that nothing happens to.

        Raises:
            CrashTestFailed: it does not come to its end, does not clean up, or is not the same when it runs again.
        """
        first, points = self._run_baseline_once(process)
        again, _ = self._run_baseline_once(process)
        faults = TrialCheck(again, first, self._config.run_id).faults
        if faults:
            raise CrashTestFailed(
                "two unharmed runs differ, so a third that crashed cannot be compared with them: give the agent a "
                f"model and tools that do the same every time. {'; '.join(faults)}"
            )
        self._baseline = first
        return points

    def _run_baseline_once(self, process: WorkerProcess) -> tuple[Timeline, list[CrashPoint]]:
        with self._open_trial(process) as attempt:
            code = attempt.run_attempt()
            if code != 0:
                raise CrashTestFailed(f"the unharmed run failed ({_format_exit_code(code)}):\n{attempt.process_output}")
            notes = attempt.events
            story = Timeline(notes)
            faults = TrialCheck(story, story, self._config.run_id).faults
            if faults:
                raise CrashTestFailed(f"the unharmed run is not right: {'; '.join(faults)}")
            points = [
                CrashPoint(name=note.point, marks=note.marks) for note in notes if isinstance(note, PointReachedEvent)
            ]
            return story, points

    def crash_at(self, process: WorkerProcess, point: CrashPoint) -> Trial:
        """Crash at this point, recover, compare."""
        for _ in range(_MAX_TRIES):
            with self._open_trial(process) as attempt:
                code = attempt.run_attempt(crash_at=point.marks)
                if code == 0:
                    continue
                if code == -signal.SIGKILL:
                    code = attempt.run_attempt()
                return self._evaluate(attempt, point.name, code, crashes=1)
        return Trial(planned=point.name, crashed_at=(), exact=False, faults=("this point was never reached",))

    def crash_repeatedly(self, process: WorkerProcess, plan: Sequence[int]) -> Trial:
        """Crash at the n-th point of each life in turn, as long as lives have so many; then let the run end."""
        planned = f"at points {', '.join(map(str, plan))} of its lives"
        first = plan[0]
        while True:
            with self._open_trial(process) as attempt:
                code, crashes = attempt.run_attempt(crash_at_nth=first), 0
                if code == 0 and first > 1:
                    first //= 2  # quicker tools, fewer writes, fewer points: there were not so many this time
                    continue
                for nth in [*plan[1:], None]:
                    if code != -signal.SIGKILL:
                        break
                    crashes += 1
                    code = attempt.run_attempt(crash_at_nth=nth)
                return self._evaluate(attempt, planned, code, crashes)

    def _evaluate(self, trial_run: _TrialRun, planned: str, code: int, crashes: int) -> Trial:
        assert self._baseline is not None, "there is nothing to compare with before the unharmed run"
        story = Timeline(trial_run.events)
        verdict = TrialCheck(story, self._baseline, self._config.run_id)
        faults = verdict.faults
        if code != 0:
            faults = [f"a process that was not to crash ended by itself ({_format_exit_code(code)})", *faults]
        if crashes == 0 or len(story.crashes) != crashes:
            # A process that died otherwise than at a point, or that noted a crash and lived on.
            faults = [f"{crashes} processes were killed, {len(story.crashes)} of them where they were to be", *faults]
        return Trial(
            planned=planned,
            crashed_at=tuple(crash.point for crash in story.crashes),
            in_doubt=tuple(sorted(f"{run_id}/{call_id}" for run_id, call_id in verdict.in_doubt)),
            exact=not verdict.diverged,
            faults=tuple(faults),
            process_output=trial_run.process_output if faults else "",
        )


def draw_plans(trials: int, crashes: int, points: int, rng: random.Random) -> list[list[int]]:
    """For each trial, at which point of each life to crash: the first anywhere, the later ones soon."""
    soon = max(1, points // crashes)
    return [[rng.randint(1, points), *(rng.randint(1, soon) for _ in range(crashes - 1))] for _ in range(trials)]


def _format_exit_code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def crash_everywhere(
    agent: Any,
    prompt: str,
    *,
    store: TrialStore = "sqlite:{folder}/runs.db",
    open_store: Any = store_from_url,
    options: Any = None,
    crashes: int = 1,
    sample: int | None = None,
    seed: int | None = None,
    max_concurrency: int | None = None,
    folder: Path | None = None,
    timeout: float = 30.0,
) -> CrashReport:
    """Run the agent unharmed, then again and again with a SIGKILL somewhere; recover, and compare.

    The places are: before and after every write to the store, and at the start and the end of every tool's body. Each
    trial has an empty store and real processes of its own, and proves that it crashed where it was to. Afterwards:

    - the run has ended with the same output, the same transcripts and the same usage as the unharmed one;
    - no `once` tool was started twice, and none that was in doubt was passed over in silence;
    - no tool and no model was called again for what the store had recorded;
    - what the store had acknowledged was there;
    - nothing is left in the store.

    A `once` call that was cut short is in doubt, and what the model is told of it is not what it would have heard. So
    from that result on the transcript may be another; everything else has to hold.

    Args:
        agent: an agent, several (the first is run, the others are those recovery has to know), or a function
            that makes them; at the top of a module, or as `"module:attribute"`. Its model has to be deterministic.
        store: the URL of an empty store, in which `{folder}` stands for the trial's own folder; or a function from that
            folder to a context manager that gives one.
        open_store: from a URL to a store, for a store of your own; at the top of a module.
        options: further arguments for `App`, such as ports, as a mapping or a function that makes one; at the top of
            a module.
        crashes: with more than one, each trial crashes up to so many times, at random places.
        sample: as many trials, at places chosen at random. Without it there is one trial for each place.
        seed: for what is chosen at random. It is in the report.
        at_once: how many trials run side by side; without it, as many as there are processors.
        folder: where the trials leave their notes, to be looked at. Without it they are deleted.
        patience: seconds after which a process that does not come to its end is taken to hang.

    Raises:
        CrashTestFailed: something of this does not hold, or a place was never reached. Is an `AssertionError`.
        DefinitionError: a child process could not find the agent.
    """
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    subject = CrashTestConfig(
        agent=find_import_path(agent),
        open_store=find_import_path(open_store),
        options=None if options is None else find_import_path(options),
        prompt=prompt,
        run_id="crash-test",
        timeout=timeout,
    )
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-crash-")))
        laboratory = TrialRunner(subject, store, folder)
        nurseries = [
            stack.enter_context(closing(WorkerProcess(subject)))
            for _ in range(max_concurrency or min(8, os.cpu_count() or 1))
        ]
        points = laboratory.run_baseline(nurseries[0])
        chance = random.Random(seed)
        trials: list[Callable[[WorkerProcess], Trial]]
        if crashes == 1:
            chosen = points if sample is None or sample >= len(points) else chance.sample(points, sample)
            trials = [lambda nursery, point=point: laboratory.crash_at(nursery, point) for point in chosen]  # type: ignore[misc]
        else:
            chosen_plans = draw_plans(sample or len(points), crashes, len(points), chance)
            trials = [lambda nursery, plan=plan: laboratory.crash_repeatedly(nursery, plan) for plan in chosen_plans]  # type: ignore[misc]
        report = CrashReport(
            agent=str(subject.agent),
            points=tuple(point.name for point in points),
            trials=tuple(_run_trials(trials, nurseries)),
            seed=seed,
        )
    if report.failed:
        raise CrashTestFailed(str(report), report)
    return report


def _run_trials(trials: Sequence[Callable[[WorkerProcess], Trial]], processes: Sequence[WorkerProcess]) -> list[Trial]:
    """The trials' outcomes, in their order; each nursery makes one at a time."""
    free: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for nursery in processes:
        free.put(nursery)

    def make(trial: Callable[[WorkerProcess], Trial]) -> Trial:
        nursery = free.get()
        try:
            return trial(nursery)
        finally:
            free.put(nursery)

    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(make, trials))
