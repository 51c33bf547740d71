"""What a crash test found.

Whether a run that crashed went on as if it had not.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from holdfast.core.effects import Effect
from holdfast.errors import HoldfastError
from holdfast.testing.crash.timeline import CallKey, RunCallKey, Timeline, is_result_of, reports_in_doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run that crashed, once or several times, and what became of it."""

    #: Where it was to crash; for several crashes, the numbers of the points in each life.
    planned: str
    #: Where it did, each proven by a note of the process and by its death.
    crashed_at: tuple[str, ...]
    #: Calls of `once` tools that were in doubt afterwards, as `run/call`.
    in_doubt: tuple[str, ...] = ()
    #: The transcripts are those of the unharmed run, to the last message.
    exact: bool = True
    #: What is wrong. Nothing, if the promises hold.
    faults: tuple[str, ...] = ()
    #: What the processes printed, if something is wrong.
    process_output: str = ""


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
        return sum(len(trial.crashed_at) for trial in self.trials)

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
            f"- crashed {' and then '.join(trial.crashed_at) or trial.planned}:\n" + _format_faults(trial)
            for trial in self.failed
        ]
        return "\n".join([told, *lines])


def _format_faults(trial: Trial) -> str:
    printed = ["the processes printed:", *trial.process_output.splitlines()[-40:]] if trial.process_output else []
    return "\n".join(f"    {line}" for line in [*trial.faults, *printed])


class CrashTestFailed(HoldfastError, AssertionError):
    """The agent does not survive all its crashes, or could not be tested. The report says where."""

    def __init__(self, message: str, report: CrashReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class TrialCheck:
    """One trial, compared with the unharmed run."""

    def __init__(self, timeline: Timeline, baseline: Timeline, run_id: str) -> None:
        self._timeline, self._baseline, self._run_id = timeline, baseline, run_id
        self._effect_by_call = baseline.effects | timeline.effects
        #: Calls of `once` tools that were reconciled, or of which the model was told that the outcome is unknown.
        self.in_doubt: set[RunCallKey] = timeline.reported_in_doubt | {
            (note.run_id, note.call_id) for note in timeline.reconciliations
        }
        #: Runs whose transcripts are another from a call in doubt on, as they may be.
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
        """Every `once` effect at most once."""
        story = self._timeline
        tools = {story.get_call_key(note): note.tool for note in story.tool_starts}
        once = [call for call in tools if self._effect_by_call.get((call[0], call[2])) == Effect.ONCE]
        started = Counter(map(story.get_call_key, story.tool_starts))
        returned = Counter(map(story.get_call_key, story.tool_returns))
        again = Counter(story.get_call_key(note) for note in story.reconciliations if note.not_executed)
        for call in once:
            what = f"the once tool {tools[call]} ({_format_call(call)})"
            if started[call] > 1 + again[call]:
                yield f"{what} was started {started[call]} times"
            elif returned[call] > 1:
                yield f"{what} did its work {returned[call]} times: its reconcile said that it had not happened"

    def _check_in_doubt_reported(self) -> Iterator[str]:
        """No `once` call that was cut short is passed over."""
        for note in self._timeline.tool_starts:
            moment = self._timeline.snapshots.get(note.attempt + 1)
            call = self._timeline.get_call_key(note)
            once = self._effect_by_call.get((note.run_id, note.call_id)) == Effect.ONCE
            cut_short = moment is not None and once and call not in moment.results
            if cut_short and (note.run_id, note.call_id) not in self.in_doubt:
                yield f"the once tool {note.tool} ({_format_call(call)}) was in doubt, and nobody was told"

    def _check_repeated_calls(self) -> Iterator[str]:
        """No call is made again whose result was recorded, nor twice in one life."""
        story = self._timeline
        for (life, call), times in Counter(
            (note.attempt, story.get_call_key(note)) for note in story.tool_starts
        ).items():
            if times > 1 + story.park_counts[life]:
                yield f"{_format_call(call)} was made {times} times in life {life}"
            if life in story.snapshots and call in story.snapshots[life].results:
                yield f"{_format_call(call)} was made again in life {life}, though its result was recorded"

    def _check_changed_results(self) -> Iterator[str]:
        """What was recorded of a call is what the model hears of it."""
        for moment in self._timeline.snapshots.values():
            for call, recorded in moment.results.items():
                heard = [body for body in self._timeline.transcripts.get(call[0], []) if is_result_of(body, call[2])]
                if heard and recorded not in heard:
                    yield f"the recorded result of {_format_call(call)} is not what the model heard of it"

    def _check_repeated_replies(self) -> Iterator[str]:
        """No model call is made again whose reply was recorded."""
        usual = Counter(note.key for note in self._baseline.model_requests)
        for life, moment in self._timeline.snapshots.items():
            asked = Counter(note.key for note in self._timeline.model_requests if note.attempt == life)
            for key, times in asked.items():
                if key in usual and times > usual[key] - moment.replies[key]:
                    yield f"in life {life} a model was asked again for a reply that was recorded"
            for said in self._timeline.other_loop_replies:
                if said.attempt == life and said.step <= moment.other_loop_replies.get(said.run_id, 0):
                    yield f"in life {life} a model was asked again for its reply in step {said.step}"

    def _check_transcripts(self) -> Iterator[str]:
        """The same transcripts, up to the first call in doubt."""
        trial, usual = self._timeline.transcripts, self._baseline.transcripts
        for run_id in sorted(trial.keys() & usual.keys(), key=self._timeline.get_depth, reverse=True):
            pairs = enumerate(zip_longest(trial[run_id], usual[run_id]))
            place, (here, there) = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), (0, (None, None)))
            if here is None and there is None:
                continue
            if here is not None and self._is_in_doubt(run_id, here):
                self._mark_diverged(run_id)
                continue
            yield f"the transcript of run {run_id} differs at {place}: {_format_body(here)}, not {_format_body(there)}"
        if not self.diverged and trial.keys() != usual.keys():
            yield f"there were other runs: {sorted(trial)} instead of {sorted(usual)}"

    def _mark_diverged(self, run_id: str) -> None:
        """What a run answers depends on what it was told in doubt; so does what its parent hears."""
        self.diverged.add(run_id)
        if run_id in self._timeline.parents:
            self.in_doubt.add(self._timeline.parents[run_id])

    def _is_in_doubt(self, run_id: str, body: bytes) -> bool:
        return reports_in_doubt(body) or any(is_result_of(body, call) for run, call in self.in_doubt if run == run_id)

    def _check_final_state(self) -> Iterator[str]:
        """The same output and usage, and nothing left behind."""
        story, unharmed = self._timeline, self._baseline
        if not story.outputs:
            yield "the run came to no end"
        elif not self.diverged and any(output != unharmed.outputs[-1] for output in story.outputs):
            yield f"the output is {story.outputs[-1]!r:.200} instead of {unharmed.outputs[-1]!r:.200}"
        used, usual = story.get_final_usage(self._run_id), unharmed.get_final_usage(self._run_id)
        if not self.in_doubt and used != usual:
            yield f"what was used counts up to {used} instead of {usual}"
        if story.store_left is None or story.store_left.journals:
            left = (
                [f"{journal.run_id} ({journal.status})" for journal in story.store_left.journals]
                if story.store_left
                else []
            )
            yield f"something is left in the store: {', '.join(left) or 'nobody could look'}"


def _format_call(call: CallKey) -> str:
    run_id, step, call_id = call
    return f"call {call_id}{f' in step {step}' if step else ''} of run {run_id}"


def _format_body(body: bytes | None) -> str:
    return "nothing" if body is None else f"{body.decode(errors='replace'):.300}"
