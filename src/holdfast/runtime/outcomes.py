"""Outcomes of runs that ended in this process, kept for callers who ask by run id."""

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from holdfast.checkpoint.errors import RunConflict
from holdfast.core.errors import RunCancelled, RunFailed, format_error
from holdfast.core.info import RunInfo
from holdfast.core.result import Result

#: How many outcomes of recovered runs are kept.
_MAX_OUTCOMES = 10_000


@dataclass(frozen=True, slots=True)
class _RecordedOutcome:
    """The outcome of a run, without its conversation: up to 10,000 of these are kept."""

    agent_name: str
    #: SHA-256 of the key of its prompt and inputs.
    request_digest: bytes
    #: The result, or the error as text: a traceback would keep whole transcripts in memory.
    result: Result | str
    cancelled: bool


class RecentOutcomes:
    """The outcomes of runs that ended in this process.

    The outcome of a recovered run is kept for a later caller, because no caller has received it. The outcome of a
    caller's own run is kept only while other callers wait for that run.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, _RecordedOutcome] = {}
        #: Outcomes of runs with watchers.
        self._transient: dict[str, _RecordedOutcome] = {}
        self._watchers: dict[str, int] = {}

    def record(self, info: RunInfo, outcome: Result | Exception) -> None:
        """Keep the outcome of the run."""
        self._outcomes[info.run_id] = _make_outcome(info, outcome)
        if len(self._outcomes) > _MAX_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def discard(self, run_id: str) -> None:
        """Drop the outcome of a run that is resumed."""
        self._outcomes.pop(run_id, None)
        self._transient.pop(run_id, None)

    @contextmanager
    def watching(self, run_id: str) -> Iterator[None]:
        """Count a watcher of the run: while there is one, `record_transient` keeps its outcome."""
        self._watchers[run_id] = self._watchers.get(run_id, 0) + 1
        try:
            yield
        finally:
            self._watchers[run_id] -= 1
            if not self._watchers[run_id]:
                del self._watchers[run_id]
                self._transient.pop(run_id, None)

    def record_transient(self, info: RunInfo, outcome: Result | Exception) -> None:
        """Keep the outcome as long as the run has watchers."""
        if info.run_id in self._watchers:
            self._transient[info.run_id] = _make_outcome(info, outcome)

    def lookup(self, info: RunInfo, requests: Collection[str]) -> Result | None:
        """Return the result; `None` if no outcome is kept under this id.

        Args:
            requests: the key of the prompt and inputs of `info`, as given and as stored.

        Raises:
            RunConflict: it had another agent, prompt or inputs. RunFailed: it failed. RunCancelled: it was cancelled.
        """
        outcome = self._transient.get(info.run_id) or self._outcomes.get(info.run_id)
        if outcome is None:
            return None
        if outcome.agent_name != info.agent_name or outcome.request_digest not in map(_digest_request, requests):
            raise RunConflict(info.run_id, outcome.agent_name)
        if isinstance(outcome.result, Result):
            return outcome.result
        if outcome.cancelled:
            raise RunCancelled(f"run {info.run_id} was cancelled")
        raise RunFailed(f"run {info.run_id} failed: {outcome.result}")


def _make_outcome(info: RunInfo, outcome: Result | Exception) -> _RecordedOutcome:
    result = replace(outcome, messages=()) if isinstance(outcome, Result) else format_error(outcome)
    return _RecordedOutcome(
        info.agent_name, _digest_request(info.request_key), result, isinstance(outcome, RunCancelled)
    )


def _digest_request(request_key: str) -> bytes:
    return hashlib.sha256(request_key.encode()).digest()
