"""A critic's watch on one run."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.batteries.critic.escalation import CriticError, Decision, Escalator, IdleRun
from holdfast.batteries.critic.timer import TimerQueue
from holdfast.clock import Clock
from holdfast.core.errors import PayloadError
from holdfast.core.info import RunInfo
from holdfast.core.ports import RunControl
from holdfast.core.state import RunState

log = logging.getLogger("holdfast.critic")

#: Where the watch keeps what has to outlive the process, among the run's notes.
ANNOTATION_KEY = "critic"


class WatchTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one watch, in seconds."""

    soft: float
    hard: float
    ceiling: float
    #: How long an escalator may take to answer.
    escalator: float


class IdleWatch:
    """Counts the silence of one run and acts on it, in the run's driven time: a resume goes on counting."""

    def __init__(
        self,
        info: RunInfo,
        state: RunState,
        control: RunControl,
        *,
        timeouts: WatchTimeouts,
        escalators: Sequence[Escalator],
        timers: TimerQueue,
        clock: Clock,
    ) -> None:
        self._info, self._state, self._control, self._timeouts = info, state, control, timeouts
        self._escalators, self._timers, self._clock = escalators, timers, clock
        self._started_at = clock.monotonic() - state.elapsed.total_seconds()
        note = state.annotations.get(ANNOTATION_KEY, {})
        self._last_activity: float = note.get("active_at", state.elapsed.total_seconds())
        self._extensions: int = note.get("extensions", 0)
        self._extension_s: float = note.get("extended", 0.0)
        self._escalated = False
        self._closed = False
        #: The number of the alarm that is set.
        self._timer_id = -1
        self._escalation_task: asyncio.Task[None] | None = None
        self._write_annotation()
        self._set_timer(self._last_activity + timeouts.soft)

    def activity(self) -> None:
        """The run showed a sign of life: the silence is over, and the escalator may be asked about the next one."""
        if self._closed:
            return
        self._last_activity = self._now()
        self._write_annotation()
        if self._escalated:
            self._escalated = False
            self._set_timer(self._last_activity + self._timeouts.soft)

    def close(self) -> None:
        """Stop watching, and let go of the run."""
        self._closed = True
        self._timers.cancel(self._timer_id)
        if self._escalation_task is not None:
            self._escalation_task.cancel()

    def _now(self) -> float:
        """The run's driven time."""
        return self._clock.monotonic() - self._started_at

    def _write_annotation(self) -> None:
        # A new one each time: what is saved is compared with what was saved before.
        self._state.annotations[ANNOTATION_KEY] = {
            "active_at": round(self._last_activity, 3),
            "extensions": self._extensions,
            "extended": self._extension_s,
        }

    def _set_timer(self, at: float) -> None:
        """Set the one alarm of this watch."""
        self._timers.cancel(self._timer_id)
        self._timer_id = self._timers.call_at(self._started_at + min(at, self._timeouts.ceiling), self._check_deadlines)

    @property
    def _kill_deadline(self) -> float:
        return min(self._last_activity + self._timeouts.hard + self._extension_s, self._timeouts.ceiling)

    def _check_deadlines(self) -> None:
        """A deadline may have been reached: act on it, or set the alarm to the next."""
        if self._closed:
            return
        now = self._now() + 1e-3
        if now >= self._kill_deadline:
            ceiling = now >= self._timeouts.ceiling
            self._kill("it reached its ceiling" if ceiling else f"it was silent for {now - self._last_activity:.1f} s")
        elif now < self._last_activity + self._timeouts.soft:
            self._set_timer(self._last_activity + self._timeouts.soft)
        elif self._escalated:
            self._set_timer(self._kill_deadline)
        else:
            self._escalated = True
            if self._escalation_task is not None:
                self._escalation_task.cancel()  # it is about a silence that is over
            self._escalation_task = asyncio.get_running_loop().create_task(self._escalate(self._last_activity))
            self._set_timer(self._kill_deadline)

    async def _escalate(self, idle_since: float) -> None:
        for escalator in self._escalators:
            try:
                async with asyncio.timeout(self._timeouts.escalator):
                    decision = _validate_decision(await escalator(self._describe_idle_run()))
            except Exception as exc:  # the host's code: whatever it does, the deadline that stands keeps standing
                log.warning("run %s: an escalator failed: %r", self._info.run_id, exc, exc_info=exc)
                return
            if decision is None or self._closed:
                return
            if self._last_activity != idle_since:
                log.info("run %s is active again: an answer about its silence came too late", self._info.run_id)
                return
            await self._apply_decision(decision)
            if self._closed or not decision.escalate:
                return

    async def _apply_decision(self, decision: Decision) -> None:
        if decision.kill:
            self._kill(decision.reason or "its escalator said so")
            return
        if decision.nudge:
            try:
                self._control.steer(decision.nudge)
            except PayloadError as exc:
                log.warning("run %s: an escalator's nudge was not passed on: %s", self._info.run_id, exc)
        if decision.extend > timedelta(0):
            self._extensions += 1
            self._extension_s += decision.extend.total_seconds()
            self._write_annotation()
            # Before the run may die of something else: an extension counts for the run, not for this process.
            await self._control.save_annotations()

    def _kill(self, reason: str) -> None:
        self._closed = True
        log.warning("run %s is killed: %s", self._info.run_id, reason)
        self._control.kill(reason)

    def _describe_idle_run(self) -> IdleRun:
        now = self._now()
        return IdleRun(
            info=self._info,
            state=self._state,
            idle_for=timedelta(seconds=now - self._last_activity),
            soft_timeout=timedelta(seconds=self._timeouts.soft),
            until_kill=timedelta(seconds=self._kill_deadline - now),
            extensions=self._extensions,
        )


def _validate_decision(decision: Decision | None) -> Decision | None:
    if decision is not None and not isinstance(decision, Decision):
        raise CriticError(f"it answered {decision!r:.80}: return a Decision, or None")
    return decision
