"""The checks of a trial against the baseline run, and the report of all trials."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from holdfast.checkpoint.record import TERMINAL_STATUSES
from holdfast.core.agents.calls import Effect
from holdfast.root_error import HoldfastError
from holdfast.testing.crash.timeline import CallKey, RunCallKey, Timeline, is_result_of, reports_in_doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run that crashed once or several times, and its faults."""

    #: The crash point; for several crashes, the number of the point in each attempt.
    planned: str
    #: Where it crashed. Each crash is proven by an event and by the exit status of the process.
    crashed_at: tuple[str, ...]
    #: Calls of `once` tools that were in doubt after a crash, as `run/call`.
    in_doubt: tuple[str, ...] = ()
    #: The transcripts equal those of the baseline run.
    exact: bool = True
    #: The promises that do not hold.
    faults: tuple[str, ...] = ()
    #: The output of the processes, if there are faults.
    process_output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """All trials of one agent."""

    agent: str
    #: The names of the crash points of the baseline run, in order.
    points: tuple[str, ...]
    trials: tuple[Trial, ...]
    #: The seed of the random choices.
    seed: int

    @property
    def failed(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.faults)

    @property
    def crashes(self) -> int:
        """The number of processes that were killed."""
        return sum(len(trial.crashed_at) for trial in self.trials)

    @property
    def exact(self) -> int:
        return sum(trial.exact and not trial.faults for trial in self.trials)

    @property
    def in_doubt(self) -> int:
        """The number of trials with a call in doubt."""
        return sum(bool(trial.in_doubt) for trial in self.trials)

    def __str__(self) -> str:
        summary = (
            f"{self.agent}: {len(self.points)} crash points, {len(self.trials)} trials, {self.crashes} crashes "
            f"(seed {self.seed}); {self.exact} trials equal the baseline run, {self.in_doubt} had a call in "
            f"doubt, {len(self.failed)} failed"
        )
        lines = [
            f"- crashed {' and then '.join(trial.crashed_at) or trial.planned}:\n" + _format_faults(trial)
            for trial in self.failed
        ]
        return "\n".join([summary, *lines])


def _format_faults(trial: Trial) -> str:
    output = ["output of the processes:", *trial.process_output.splitlines()[-40:]] if trial.process_output else []
    return "\n".join(f"    {line}" for line in [*trial.faults, *output])


class CrashTestFailed(HoldfastError, AssertionError):
    """The agent does not survive all crashes, or could not be tested. `report` has the failed trials.

    What to do: Read the failed trials in the report: each names the write before or after which the process was
    killed.
    """

    def __init__(self, message: str, report: CrashReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class TrialCheck:
    """Compares the timeline of one trial with that of the baseline run."""

    def __init__(self, timeline: Timeline, baseline: Timeline, run_id: str) -> None:
        self._timeline, self._baseline, self._run_id = timeline, baseline, run_id
        self._effect_by_call = baseline.effects | timeline.effects
        #: Calls of `once` tools that were reconciled, or whose outcome was reported to the model as unknown.
        self.in_doubt: set[RunCallKey] = timeline.reported_in_doubt | {
            (event.run_id, event.call_id) for event in timeline.reconciliations
        }
        #: Runs whose transcripts differ after a call in doubt, which is allowed.
        self.diverged: set[str] = set()
        self.faults: list[str] = [
            *timeline.lost_writes,
            *self._check_once_effects(),
            *self._check_in_doubt_reported(),
            *self._check_repeated_calls(),
            *self._check_changed_results(),
            *self._check_repeated_replies(),
            *self._check_transcripts(),
            *self._check_final_state(),
        ]

    def _check_once_effects(self) -> Iterator[str]:
        """Check that no `once` tool was executed twice."""
        timeline = self._timeline
        tools = {timeline.get_call_key(event): event.tool for event in timeline.tool_starts}
        once = [call for call in tools if self._effect_by_call.get((call[0], call[2])) == Effect.ONCE]
        started = Counter(map(timeline.get_call_key, timeline.tool_starts))
        returned = Counter(map(timeline.get_call_key, timeline.tool_returns))
        again = Counter(timeline.get_call_key(event) for event in timeline.reconciliations if event.not_executed)
        for call in once:
            name = f"the once tool {tools[call]} ({_format_call(call)})"
            if started[call] > 1 + again[call]:
                yield f"{name} was started {started[call]} times"
            elif returned[call] > 1:
                yield f"{name} returned {returned[call]} times: its reconcile said NOT_EXECUTED after it had returned"

    def _check_in_doubt_reported(self) -> Iterator[str]:
        """Check that every `once` call that a crash interrupted was reconciled or reported."""
        for event in self._timeline.tool_starts:
            snapshot = self._timeline.snapshots.get(event.attempt + 1)
            call = self._timeline.get_call_key(event)
            once = self._effect_by_call.get((event.run_id, event.call_id)) == Effect.ONCE
            interrupted = snapshot is not None and once and call not in snapshot.results
            if interrupted and (event.run_id, event.call_id) not in self.in_doubt:
                yield f"the once tool {event.tool} ({_format_call(call)}) was in doubt and never reconciled or reported"

    def _check_repeated_calls(self) -> Iterator[str]:
        """Check that no call was repeated in one attempt, or after its result was recorded."""
        timeline = self._timeline
        for (attempt, call), times in Counter(
            (event.attempt, timeline.get_call_key(event)) for event in timeline.tool_starts
        ).items():
            if times > 1 + timeline.park_counts[attempt]:
                yield f"{_format_call(call)} was made {times} times in attempt {attempt}"
            if attempt in timeline.snapshots and call in timeline.snapshots[attempt].results:
                yield f"{_format_call(call)} was repeated in attempt {attempt}, though its result was recorded"

    def _check_changed_results(self) -> Iterator[str]:
        """Check that the model received the recorded result of each call."""
        for snapshot in self._timeline.snapshots.values():
            for call, recorded in snapshot.results.items():
                received = [body for body in self._timeline.transcripts.get(call[0], []) if is_result_of(body, call[2])]
                if received and recorded not in received:
                    yield f"the model did not receive the recorded result of {_format_call(call)}"

    def _check_repeated_replies(self) -> Iterator[str]:
        """Check that no model call was repeated after its reply was recorded."""
        expected = Counter(event.key for event in self._baseline.model_requests)
        for attempt, snapshot in self._timeline.snapshots.items():
            requests = Counter(event.key for event in self._timeline.model_requests if event.attempt == attempt)
            for key, times in requests.items():
                if key in expected and times > expected[key] - snapshot.replies[key]:
                    yield f"attempt {attempt} repeated a model call whose reply was recorded"
            for reply in self._timeline.other_loop_replies:
                if reply.attempt == attempt and reply.step <= snapshot.other_loop_replies.get(reply.run_id, 0):
                    yield f"attempt {attempt} repeated the model call of step {reply.step}, whose reply was recorded"

    def _check_transcripts(self) -> Iterator[str]:
        """Check that the transcripts are equal up to the first call in doubt."""
        trial, baseline = self._timeline.transcripts, self._baseline.transcripts
        for run_id in sorted(trial.keys() & baseline.keys(), key=self._timeline.get_depth, reverse=True):
            pairs = enumerate(zip_longest(trial[run_id], baseline[run_id]))
            different = next(((index, *pair) for index, pair in pairs if pair[0] != pair[1]), None)
            if different is None:
                continue
            index, actual, expected = different
            if actual is not None and self._is_in_doubt(run_id, actual):
                self._mark_diverged(run_id)
                continue
            shown = f"{_format_body(actual)}, not {_format_body(expected)}"
            yield f"the transcript of run {run_id} differs at message {index}: {shown}"
        if not self.diverged and trial.keys() != baseline.keys():
            yield f"the runs are {sorted(trial)} instead of {sorted(baseline)}"

    def _mark_diverged(self, run_id: str) -> None:
        """Allow the run to differ from here on. Its result is then in doubt for its parent too."""
        self.diverged.add(run_id)
        if run_id in self._timeline.parents:
            self.in_doubt.add(self._timeline.parents[run_id])

    def _is_in_doubt(self, run_id: str, body: bytes) -> bool:
        return reports_in_doubt(body) or any(is_result_of(body, call) for run, call in self.in_doubt if run == run_id)

    def _check_final_state(self) -> Iterator[str]:
        """Check the output, the usage, and that the store holds no unfinished run."""
        timeline, baseline = self._timeline, self._baseline
        if not timeline.outputs:
            yield "the run did not finish"
        elif not self.diverged and any(output != baseline.outputs[-1] for output in timeline.outputs):
            yield f"the output is {timeline.outputs[-1]!r:.200} instead of {baseline.outputs[-1]!r:.200}"
        used, expected = timeline.get_final_usage(self._run_id), baseline.get_final_usage(self._run_id)
        if not self.in_doubt and used != expected:
            yield f"the usage is {used} instead of {expected}"
        if timeline.store_left is None:
            yield "the last attempt did not read the store"
            return
        left = [journal for journal in timeline.store_left.journals if journal.status not in TERMINAL_STATUSES]
        if left:
            names = ", ".join(f"{journal.run_id} ({journal.status})" for journal in left)
            yield f"the store still holds {names}"


def _format_call(call: CallKey) -> str:
    run_id, step, call_id = call
    return f"call {call_id}{f' in step {step}' if step else ''} of run {run_id}"


def _format_body(body: bytes | None) -> str:
    return "nothing" if body is None else f"{body.decode(errors='replace'):.300}"
