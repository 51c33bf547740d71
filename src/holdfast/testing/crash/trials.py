"""Trials: runs of the tested agent that crash, each in a store of its own, and `crash_everywhere`, which makes them."""

import contextlib
import functools
import itertools
import operator
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
from typing import Any, Literal

import msgspec

from holdfast.ids import draw_bits
from holdfast.stores.from_url import store_from_url
from holdfast.testing.crash.checks import CrashReport, CrashTestFailed, Trial, TrialCheck
from holdfast.testing.crash.recording import AnyEvent, PointReachedEvent, WriteAcknowledgedEvent, read_events
from holdfast.testing.crash.timeline import Timeline
from holdfast.testing.crash.trial_process import (
    AttemptResult,
    CrashTestConfig,
    TrialProcess,
    find_import_path,
    get_events_path,
    get_log_path,
)


class WorkerProcess:
    """A process that runs one attempt after another, each in a child process."""

    def __init__(self, config: CrashTestConfig) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.testing.crash.worker_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send(config)

    def run_attempt(self, attempt: TrialProcess) -> int:
        """Wait until the attempt has ended. Return its exit code, or minus the signal that killed it."""
        self._send(attempt)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise CrashTestFailed(f"the process that runs the attempts ended with {self._process.wait()}")
        return msgspec.json.decode(answer, type=AttemptResult).exit_code

    def _send(self, message: CrashTestConfig | TrialProcess) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


#: A URL in which `{folder}` is the folder of the trial, or a function from that folder to a context manager of a URL.
TrialStore = str | Callable[[Path], contextlib.AbstractContextManager[str]]

#: How many trials are made: a number, one of each kind of point, or one of each point.
Sample = int | Literal["kinds"] | None

#: How many attempts may miss a crash point before the trial fails. Only agents with timing of their own miss one.
_MAX_TRIES = 3


class CrashPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a run can crash."""

    name: str
    marks: Sequence[str]


class _TrialRun:
    """One run in a store of its own, over as many attempts as it needs."""

    def __init__(self, process: WorkerProcess, config: CrashTestConfig, url: str, folder: Path) -> None:
        self._process, self._config, self._url, self.folder = process, config, url, folder
        self._attempt_count = 0

    def run_attempt(self, *, crash_at: Sequence[str] = (), crash_at_nth: int | None = None) -> int:
        """Run the next attempt. Return its exit code."""
        attempt = TrialProcess(
            number=self._attempt_count,
            url=self._url,
            folder=str(self.folder),
            crash_at=crash_at,
            crash_at_nth=crash_at_nth,
            run_acknowledged=self._is_run_acknowledged(),
        )
        self._attempt_count += 1
        return self._process.run_attempt(attempt)

    def _is_run_acknowledged(self) -> bool:
        run_id = self._config.run_id
        return any(isinstance(event, WriteAcknowledgedEvent) and event.run_id == run_id for event in self.events)

    @property
    def events(self) -> list[AnyEvent]:
        return read_events(get_events_path(self.folder))

    @property
    def process_output(self) -> str:
        logs = [get_log_path(self.folder, number) for number in range(self._attempt_count)]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())


class TrialRunner:
    """Makes the trials of one test. Threads may share it if each has its own `WorkerProcess`."""

    def __init__(self, config: CrashTestConfig, store: TrialStore, folder: Path) -> None:
        self._config, self._store, self._folder = config, store, folder
        self._trial_numbers = itertools.count()
        self._baseline: Timeline | None = None

    @contextlib.contextmanager
    def _open_trial(self, process: WorkerProcess) -> Iterator[_TrialRun]:
        folder = self._folder / f"trial-{next(self._trial_numbers)}"
        folder.mkdir()
        if isinstance(self._store, str):
            yield _TrialRun(process, self._config, self._store.format(folder=folder), folder)
        else:
            with self._store(folder) as url:
                yield _TrialRun(process, self._config, url, folder)

    def run_baseline(self, process: WorkerProcess) -> list[CrashPoint]:
        """Run the agent without a crash. Return its crash points.

        Raises:
            CrashTestFailed: the run does not finish, leaves a run unfinished, or differs when it is repeated.
        """
        first, points = self._run_baseline_once(process)
        second, _ = self._run_baseline_once(process)
        faults = TrialCheck(second, first, self._config.run_id).faults
        if faults:
            raise CrashTestFailed(
                "two baseline runs differ, so a run that crashed cannot be compared with them: use a deterministic "
                f"model and deterministic tools. {'; '.join(faults)}"
            )
        self._baseline = first
        return points

    def _run_baseline_once(self, process: WorkerProcess) -> tuple[Timeline, list[CrashPoint]]:
        with self._open_trial(process) as trial_run:
            code = trial_run.run_attempt()
            if code != 0:
                output = trial_run.process_output
                raise CrashTestFailed(f"the baseline run failed ({_format_exit_code(code)}):\n{output}")
            events = trial_run.events
        timeline = Timeline(events)
        faults = TrialCheck(timeline, timeline, self._config.run_id).faults
        if faults:
            raise CrashTestFailed(f"the baseline run breaks a promise: {'; '.join(faults)}")
        reached = [event for event in events if isinstance(event, PointReachedEvent)]
        return timeline, [CrashPoint(name=event.point, marks=event.marks) for event in reached]

    def crash_at(self, point: CrashPoint, process: WorkerProcess) -> Trial:
        """Crash at this point, recover and compare."""
        for _ in range(_MAX_TRIES):
            with self._open_trial(process) as trial_run:
                code = trial_run.run_attempt(crash_at=point.marks)
                if code == 0:
                    continue
                if code == -signal.SIGKILL:
                    code = trial_run.run_attempt()
                return self._check(trial_run, point.name, code, crashes=1)
        return Trial(planned=point.name, crashed_at=(), exact=False, faults=("this point was never reached",))

    def crash_repeatedly(self, plan: Sequence[int], process: WorkerProcess) -> Trial:
        """Crash each attempt at its point of the plan, if it has that many points. Then let the run finish."""
        planned = f"at points {', '.join(map(str, plan))} of its attempts"
        first = plan[0]
        while True:
            with self._open_trial(process) as trial_run:
                code, crashes = trial_run.run_attempt(crash_at_nth=first), 0
                if code == 0 and first > 1:
                    first //= 2  # faster tools make fewer writes, so this run had fewer points than the baseline
                    continue
                for nth in [*plan[1:], None]:
                    if code != -signal.SIGKILL:
                        break
                    crashes += 1
                    code = trial_run.run_attempt(crash_at_nth=nth)
                return self._check(trial_run, planned, code, crashes)

    def _check(self, trial_run: _TrialRun, planned: str, code: int, crashes: int) -> Trial:
        assert self._baseline is not None, "run_baseline comes first"
        timeline = Timeline(trial_run.events)
        check = TrialCheck(timeline, self._baseline, self._config.run_id)
        faults = check.faults
        if code != 0:
            faults = [f"the last attempt ended with {_format_exit_code(code)}", *faults]
        if crashes == 0 or len(timeline.crashes) != crashes:
            # A process died elsewhere than at a crash point, or survived its own SIGKILL.
            faults = [f"{crashes} processes were killed, {len(timeline.crashes)} of them at a crash point", *faults]
        return Trial(
            planned=planned,
            crashed_at=tuple(crash.point for crash in timeline.crashes),
            in_doubt=tuple(sorted(f"{run_id}/{call_id}" for run_id, call_id in check.in_doubt)),
            exact=not check.diverged,
            faults=tuple(faults),
            process_output=trial_run.process_output if faults else "",
        )


def draw_plans(trials: int, crashes: int, points: int, rng: random.Random) -> list[list[int]]:
    """Draw the crash point of each attempt, for each trial: the first anywhere, the later ones early."""
    early = max(1, points // crashes)
    return [[rng.randint(1, points), *(rng.randint(1, early) for _ in range(crashes - 1))] for _ in range(trials)]


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
    sample: Sample = None,
    seed: int | None = None,
    max_concurrency: int | None = None,
    folder: Path | None = None,
    timeout: float = 30.0,
) -> CrashReport:
    """Run the agent once without a crash, then once per crash point with a SIGKILL there; recover, and compare.

    The crash points are before and after every write to the store, and at the start and the end of every tool's body.
    Each trial has an empty store and processes of its own, and proves that the crash happened at its point. Then:

    - the run has finished with the same output, transcripts and usage as the baseline run;
    - no `once` tool was started twice, and every interrupted one was reconciled or reported;
    - no tool call and no model call was repeated after its result was recorded;
    - every write that the store acknowledged was still there;
    - the store holds no unfinished run, and a caller who asks for the run again gets its recorded result.

    An interrupted `once` call is in doubt, so the model gets another result than in the baseline run. From that result
    on the transcript may differ; everything else must hold.

    Args:
        agent: an agent, several (the first is run, recovery needs the others), or a function that builds them; at the
            top of a module, or as `"module:attribute"`. Its model must be deterministic.
        store: the URL of an empty store, in which `{folder}` is the trial's own folder; or a function from that
            folder to a context manager of a URL.
        open_store: from a URL to a store, for a store of your own; at the top of a module.
        options: further arguments for `App`, such as ports, as a mapping or a function that returns one; at the top of
            a module.
        crashes: with more than one, each trial crashes up to this many times, at random points.
        sample: the number of trials, at random points of as many kinds as possible; or `"kinds"`, for one trial of
            each kind. Points are of one kind if only steps, calls or child runs differ, such as the writes before
            each step. Without a sample there is one trial for each point.
        seed: for the random choices. It is in the report.
        max_concurrency: how many trials run at the same time; by default one per processor, at most 8.
        folder: where the trials leave their logs. Without it they are deleted.
        timeout: seconds after which an attempt that has not ended counts as hanging.

    Raises:
        CrashTestFailed: one of these promises does not hold, or a point was never reached. Is an `AssertionError`.
        DefinitionError: a child process cannot import the agent.
    """
    seed = draw_bits(32) if seed is None else seed
    config = CrashTestConfig(
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
        runner = TrialRunner(config, store, folder)
        concurrency = max_concurrency or min(8, os.cpu_count() or 1)
        processes = [stack.enter_context(closing(WorkerProcess(config))) for _ in range(concurrency)]
        points = runner.run_baseline(processes[0])
        trials = _choose_trials(runner, points, crashes, sample, random.Random(seed))
        report = CrashReport(
            agent=str(config.agent),
            points=tuple(point.name for point in points),
            trials=tuple(_run_trials(trials, processes)),
            seed=seed,
        )
    if report.failed:
        raise CrashTestFailed(str(report), report)
    return report


def _choose_trials(
    runner: TrialRunner, points: list[CrashPoint], crashes: int, sample: Sample, rng: random.Random
) -> list[Callable[[WorkerProcess], Trial]]:
    if crashes > 1:
        trials = sample if isinstance(sample, int) else len(points)
        plans = draw_plans(trials, crashes, len(points), rng)
        return [functools.partial(runner.crash_repeatedly, plan) for plan in plans]
    return [functools.partial(runner.crash_at, point) for point in choose_points(points, sample, rng)]


def choose_points(points: Sequence[CrashPoint], sample: Sample, rng: random.Random) -> Sequence[CrashPoint]:
    """Choose one point of each kind, then a second one of each, until there are enough."""
    if sample is None:
        return points
    # Sorted, because concurrent tools reach their points in any order, and a seed chooses the same points.
    shuffled = sorted(points, key=operator.attrgetter("name"))
    rng.shuffle(shuffled)
    kinds: dict[str, list[CrashPoint]] = {}
    for point in shuffled:
        kinds.setdefault(get_point_kind(point.name), []).append(point)
    ranks = itertools.zip_longest(*kinds.values())
    return [point for rank in ranks for point in rank if point][: len(kinds) if sample == "kinds" else sample]


def get_point_kind(name: str) -> str:
    """Return the name of a point without the words that contain a number: its step, call and child run."""
    return " ".join(word for word in name.split() if not any(map(str.isdigit, word)))


def _run_trials(trials: Sequence[Callable[[WorkerProcess], Trial]], processes: Sequence[WorkerProcess]) -> list[Trial]:
    """Run the trials, one at a time in each process. Return them in order."""
    idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def run(trial: Callable[[WorkerProcess], Trial]) -> Trial:
        process = idle.get()
        try:
            return trial(process)
        finally:
            idle.put(process)

    with ThreadPoolExecutor(len(processes)) as threads:
        return list(threads.map(run, trials))
