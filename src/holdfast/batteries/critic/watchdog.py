"""The watch on one attempt, and the escalators that decide what happens to an idle one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import msgspec

from holdfast.clock import Clock, Timer
from holdfast.core.errors import PayloadError
from holdfast.core.observer import PUBLIC_EVENTS, AttemptControl, AttemptEnded, ObservedEvent
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.root_error import HoldfastError


class CriticError(HoldfastError):
    """The critic's settings are invalid, or an escalator returned something else than a decision.

    What to do: Correct the setting that the message names, or let the escalator return a decision.
    """


class IdleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run without activity, as an escalator sees it."""

    info: RunInfo
    #: The run's current state. Read only.
    state: RunState
    #: Time since the last activity.
    idle_for: timedelta
    #: Idle time after which the escalator is asked.
    soft_timeout: timedelta
    #: Time left until the backstop kills the run.
    until_kill: timedelta
    #: Number of extensions so far, in all attempts of the run.
    extensions: int


class CriticAction(msgspec.Struct, frozen=True, kw_only=True):
    """The action to take on an idle run. By default none."""

    #: Kill the run. Overrides every other field.
    kill: bool = False
    #: A message to insert before the run's next step.
    nudge: str = ""
    #: Postpone the backstop by this long.
    extend: timedelta = timedelta(0)
    #: Ask the next escalator.
    escalate: bool = False
    reason: str = ""


#: Called once per idle period. A decision that arrives after the run became active again is ignored.
Escalator = Callable[[IdleRun], Awaitable[CriticAction | None]]


class ExtendOnce:
    """Extends an idle run by one soft timeout, once per run."""

    async def __call__(self, idle_run: IdleRun) -> CriticAction | None:
        if idle_run.extensions:
            return None
        return CriticAction(extend=idle_run.soft_timeout, reason="one extension per run")


log: logging.Logger = logging.getLogger("holdfast.critic")

#: Name of the watch's data in the run's port data.
PORT_NAME = "critic"


class WatchTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The timeouts of one watch, in seconds."""

    soft: float
    hard: float
    ceiling: float
    #: Maximum duration of one escalator call.
    escalator: float


class IdleWatch:
    """Measures the idle time of one attempt and acts on it. Any public event is activity, also one of a child run.

    All times are the execution time of the run, or of the turn of a conversation: a resumed one continues at its saved
    value.
    """

    kinds: frozenset[type] = PUBLIC_EVENTS | {AttemptEnded}

    def __init__(
        self,
        attempt: AttemptControl,
        *,
        timeouts: WatchTimeouts,
        escalators: Sequence[Escalator],
        clock: Clock,
    ) -> None:
        info, state = attempt.info, attempt.state
        self._info, self._state, self._attempt, self._timeouts = info, state, attempt, timeouts
        self._escalators, self._clock = escalators, clock
        elapsed = state.turn_elapsed.total_seconds()
        self._started_at = clock.monotonic() - elapsed
        is_new_turn = bool(info.conversation) and state.turn is None
        saved = {} if is_new_turn else state.port_data.get(PORT_NAME, {})
        self._last_activity = elapsed
        self._extensions: int = saved.get("extensions", 0)
        self._extension_s: float = saved.get("extended", 0.0)
        self._escalated = False
        self._closed = False
        self._timer: Timer | None = None
        self._escalation_task: asyncio.Task[None] | None = None
        self._write_port_data()
        self._set_timer(self._last_activity + timeouts.soft)

    def observe(self, event: ObservedEvent) -> None:
        """Record activity: the idle period ends, and the escalator may be asked about the next one."""
        if isinstance(event, AttemptEnded):
            self._close()
        if self._closed:
            return
        self._last_activity = self._now()
        if self._escalated:
            self._escalated = False
            self._set_timer(self._last_activity + self._timeouts.soft)

    def _close(self) -> None:
        """Stop watching the run."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._escalation_task is not None:
            self._escalation_task.cancel()

    def _now(self) -> float:
        """Return the run's execution time in seconds."""
        return self._clock.monotonic() - self._started_at

    def _write_port_data(self) -> None:
        self._state.set_port_data(PORT_NAME, {"extensions": self._extensions, "extended": self._extension_s})

    def _set_timer(self, at: float) -> None:
        """Set the only timer of this watch, to the run's execution time `at`."""
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0.0, min(at, self._timeouts.ceiling) - self._now())
        self._timer = self._clock.call_later(timedelta(seconds=wait), self._check_deadlines)

    @property
    def _kill_deadline(self) -> float:
        return min(self._last_activity + self._timeouts.hard + self._extension_s, self._timeouts.ceiling)

    def _check_deadlines(self) -> None:
        """Act on a deadline that has passed, or set the timer to the next one."""
        if self._closed:
            return
        now = self._now() + 1e-3
        if now >= self._kill_deadline:
            at_ceiling = now >= self._timeouts.ceiling
            idle_s = now - self._last_activity
            self._kill("it reached its ceiling" if at_ceiling else f"it was idle for {idle_s:.1f} s")
        elif now < self._last_activity + self._timeouts.soft:
            self._set_timer(self._last_activity + self._timeouts.soft)
        elif self._escalated:
            self._set_timer(self._kill_deadline)
        else:
            self._escalated = True
            if self._escalation_task is not None:
                self._escalation_task.cancel()  # it is about an earlier idle period
            self._escalation_task = asyncio.get_running_loop().create_task(self._escalate(self._last_activity))
            self._set_timer(self._kill_deadline)

    async def _escalate(self, idle_since: float) -> None:
        for escalator in self._escalators:
            try:
                async with asyncio.timeout(self._timeouts.escalator):
                    decision = _validate_decision(await escalator(self._describe_idle_run()))
            except Exception as exc:  # the host's code may raise anything; the deadline stays as it is
                log.warning("run %s: an escalator failed: %r", self._info.run_id, exc, exc_info=exc)
                return
            if decision is None or self._closed:
                return
            if self._last_activity != idle_since:
                log.info("run %s is active again: ignoring a late decision of its escalator", self._info.run_id)
                return
            await self._apply_decision(decision)
            if self._closed or not decision.escalate:
                return

    async def _apply_decision(self, decision: CriticAction) -> None:
        if decision.kill:
            self._kill(decision.reason or "its escalator decided so")
            return
        if decision.nudge:
            try:
                self._attempt.nudge(decision.nudge)
            except PayloadError as exc:
                log.warning("run %s: an escalator's nudge was refused: %s", self._info.run_id, exc)
        if decision.extend > timedelta(0):
            self._extensions += 1
            self._extension_s += decision.extend.total_seconds()
            self._write_port_data()
            # Save now: the extension counts for the run, so it has to survive a crash of this process.
            await self._attempt.save()

    def _kill(self, reason: str) -> None:
        self._closed = True
        log.warning("run %s was killed: %s", self._info.run_id, reason)
        self._attempt.kill(reason)

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


def _validate_decision(decision: CriticAction | None) -> CriticAction | None:
    if decision is not None and not isinstance(decision, CriticAction):
        raise CriticError(f"an escalator returned {decision!r:.80}: return a CriticAction, or None")
    return decision
