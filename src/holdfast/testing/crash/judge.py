"""Whether a run that crashed went on as if it had not."""

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from holdfast.run.effects import Effect
from holdfast.testing.crash.reading import is_answer_to, tells_doubt
from holdfast.testing.crash.story import CallOfRun, OneCall, Story


class Verdict:
    """One trial, compared with the unharmed run."""

    def __init__(self, story: Story, unharmed: Story, run_id: str) -> None:
        self._story, self._unharmed, self._run_id = story, unharmed, run_id
        self._effects_of = unharmed.effects | story.effects
        #: Calls of `once` tools that were reconciled, or of which the model was told that the outcome is unknown.
        self.in_doubt: set[CallOfRun] = story.told | {(note.run_id, note.call_id) for note in story.reconciled}
        #: Runs whose transcripts are another from a call in doubt on, as they may be.
        self.diverged: set[str] = set()
        self.faults: list[str] = [
            *story.lost,
            *self._effects(),
            *self._silent_doubts(),
            *self._repeated_calls(),
            *self._changed_results(),
            *self._repeated_replies(),
            *self._transcripts(),
            *self._end(),
        ]

    def _effects(self) -> Iterator[str]:
        """Every `once` effect at most once."""
        story = self._story
        tools = {story.one(note): note.tool for note in story.starts}
        once = [call for call in tools if self._effects_of.get((call[0], call[2])) == Effect.ONCE]
        started = Counter(map(story.one, story.starts))
        returned = Counter(map(story.one, story.returns))
        again = Counter(story.one(note) for note in story.reconciled if note.did_not_happen)
        for call in once:
            what = f"the once tool {tools[call]} ({_named(call)})"
            if started[call] > 1 + again[call]:
                yield f"{what} was started {started[call]} times"
            elif returned[call] > 1:
                yield f"{what} did its work {returned[call]} times: its reconcile said that it had not happened"

    def _silent_doubts(self) -> Iterator[str]:
        """No `once` call that was cut short is passed over."""
        for note in self._story.starts:
            moment = self._story.moments.get(note.life + 1)
            call = self._story.one(note)
            once = self._effects_of.get((note.run_id, note.call_id)) == Effect.ONCE
            cut_short = moment is not None and once and call not in moment.results
            if cut_short and (note.run_id, note.call_id) not in self.in_doubt:
                yield f"the once tool {note.tool} ({_named(call)}) was in doubt, and nobody was told"

    def _repeated_calls(self) -> Iterator[str]:
        """No call is made again whose result was recorded, nor twice in one life."""
        story = self._story
        for (life, call), times in Counter((note.life, story.one(note)) for note in story.starts).items():
            if times > 1 + story.parkings[life]:
                yield f"{_named(call)} was made {times} times in life {life}"
            if life in story.moments and call in story.moments[life].results:
                yield f"{_named(call)} was made again in life {life}, though its result was recorded"

    def _changed_results(self) -> Iterator[str]:
        """What was recorded of a call is what the model hears of it."""
        for moment in self._story.moments.values():
            for call, recorded in moment.results.items():
                heard = [body for body in self._story.transcripts.get(call[0], []) if is_answer_to(body, call[2])]
                if heard and recorded not in heard:
                    yield f"the recorded result of {_named(call)} is not what the model heard of it"

    def _repeated_replies(self) -> Iterator[str]:
        """No model call is made again whose reply was recorded."""
        usual = Counter(note.key for note in self._unharmed.asked)
        for life, moment in self._story.moments.items():
            asked = Counter(note.key for note in self._story.asked if note.life == life)
            for key, times in asked.items():
                if key in usual and times > usual[key] - moment.replies[key]:
                    yield f"in life {life} a model was asked again for a reply that was recorded"
            for said in self._story.said:
                if said.life == life and said.step <= moment.foreign_replies.get(said.run_id, 0):
                    yield f"in life {life} a model was asked again for its reply in step {said.step}"

    def _transcripts(self) -> Iterator[str]:
        """The same transcripts, up to the first call in doubt."""
        trial, usual = self._story.transcripts, self._unharmed.transcripts
        for run_id in sorted(trial.keys() & usual.keys(), key=self._story.depth, reverse=True):
            pairs = enumerate(zip_longest(trial[run_id], usual[run_id]))
            place, (here, there) = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), (0, (None, None)))
            if here is None and there is None:
                continue
            if here is not None and self._is_doubtful(run_id, here):
                self._diverge(run_id)
                continue
            yield f"the transcript of run {run_id} differs at {place}: {_shown(here)} instead of {_shown(there)}"
        if not self.diverged and trial.keys() != usual.keys():
            yield f"there were other runs: {sorted(trial)} instead of {sorted(usual)}"

    def _diverge(self, run_id: str) -> None:
        """What a run answers depends on what it was told in doubt; so does what its parent hears."""
        self.diverged.add(run_id)
        if run_id in self._story.parents:
            self.in_doubt.add(self._story.parents[run_id])

    def _is_doubtful(self, run_id: str, body: bytes) -> bool:
        return tells_doubt(body) or any(is_answer_to(body, call) for run, call in self.in_doubt if run == run_id)

    def _end(self) -> Iterator[str]:
        """The same output and usage, and nothing left behind."""
        story, unharmed = self._story, self._unharmed
        if not story.outputs:
            yield "the run came to no end"
        elif not self.diverged and any(output != unharmed.outputs[-1] for output in story.outputs):
            yield f"the output is {story.outputs[-1]!r:.200} instead of {unharmed.outputs[-1]!r:.200}"
        used, usual = story.usage(self._run_id), unharmed.usage(self._run_id)
        if not self.in_doubt and used != usual:
            yield f"what was used counts up to {used} instead of {usual}"
        if story.left is None or story.left.journals:
            left = [f"{journal.run_id} ({journal.status})" for journal in story.left.journals] if story.left else []
            yield f"something is left in the store: {', '.join(left) or 'nobody could look'}"


def _named(call: OneCall) -> str:
    run_id, step, call_id = call
    return f"call {call_id}{f' in step {step}' if step else ''} of run {run_id}"


def _shown(body: bytes | None) -> str:
    return "nothing" if body is None else f"{body.decode(errors='replace'):.300}"
