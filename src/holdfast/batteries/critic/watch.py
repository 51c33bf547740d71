"""A critic's watch on one run."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.batteries.critic.alarm import Alarm
from holdfast.batteries.critic.decision import Decision, Escalator, Silence
from holdfast.batteries.critic.errors import CriticError
from holdfast.clock import Clock
from holdfast.run.errors import PayloadError
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunControl
from holdfast.run.state import RunState

log = logging.getLogger("holdfast.critic")

#: Where the watch keeps what has to outlive the process, among the run's notes.
NOTE = "critic"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one watch, in seconds."""

    soft: float
    hard: float
    ceiling: float
    #: How long an escalator may take to answer.
    answer: float


class SilenceWatch:
    """Counts the silence of one run and acts on it, in the run's driven time: a resume goes on counting."""

    def __init__(
        self,
        info: RunInfo,
        state: RunState,
        control: RunControl,
        *,
        limits: Limits,
        escalators: Sequence[Escalator],
        alarm: Alarm,
        clock: Clock,
    ) -> None:
        self._info, self._state, self._control, self._limits = info, state, control, limits
        self._escalators, self._alarm, self._clock = escalators, alarm, clock
        self._zero = clock.monotonic() - state.elapsed.total_seconds()
        note = state.notes.get(NOTE, {})
        self._active_at: float = note.get("active_at", state.elapsed.total_seconds())
        self._extensions: int = note.get("extensions", 0)
        self._extended: float = note.get("extended", 0.0)
        self._asked = False
        self._over = False
        #: The number of the alarm that is set.
        self._set = -1
        self._asking: asyncio.Task[None] | None = None
        self._write_note()
        self._set_alarm(self._active_at + limits.soft)

    def activity(self) -> None:
        """The run showed a sign of life: the silence is over, and the escalator may be asked about the next one."""
        if self._over:
            return
        self._active_at = self._now()
        self._write_note()
        if self._asked:
            self._asked = False
            self._set_alarm(self._active_at + self._limits.soft)

    def close(self) -> None:
        """Stop watching, and let go of the run."""
        self._over = True
        self._alarm.call_off(self._set)
        if self._asking is not None:
            self._asking.cancel()

    def _now(self) -> float:
        """The run's driven time."""
        return self._clock.monotonic() - self._zero

    def _write_note(self) -> None:
        # A new one each time: what is saved is compared with what was saved before.
        self._state.notes[NOTE] = {
            "active_at": round(self._active_at, 3),
            "extensions": self._extensions,
            "extended": self._extended,
        }

    def _set_alarm(self, at: float) -> None:
        """Set the one alarm of this watch."""
        self._alarm.call_off(self._set)
        self._set = self._alarm.at(self._zero + min(at, self._limits.ceiling), self._look)

    @property
    def _killed_at(self) -> float:
        return min(self._active_at + self._limits.hard + self._extended, self._limits.ceiling)

    def _look(self) -> None:
        """A deadline may have been reached: act on it, or set the alarm to the next."""
        if self._over:
            return
        now = self._now() + 1e-3
        if now >= self._killed_at:
            ceiling = now >= self._limits.ceiling
            self._kill("it reached its ceiling" if ceiling else f"it was silent for {now - self._active_at:.1f} s")
        elif now < self._active_at + self._limits.soft:
            self._set_alarm(self._active_at + self._limits.soft)
        elif self._asked:
            self._set_alarm(self._killed_at)
        else:
            self._asked = True
            if self._asking is not None:
                self._asking.cancel()  # it is about a silence that is over
            self._asking = asyncio.get_running_loop().create_task(self._ask(self._active_at))
            self._set_alarm(self._killed_at)

    async def _ask(self, silent_since: float) -> None:
        for escalator in self._escalators:
            try:
                async with asyncio.timeout(self._limits.answer):
                    decision = _checked(await escalator(self._silence()))
            except Exception as exc:  # the host's code: whatever it does, the deadline that stands keeps standing
                log.warning("run %s: an escalator failed: %r", self._info.run_id, exc, exc_info=exc)
                return
            if decision is None or self._over:
                return
            if self._active_at != silent_since:
                log.info("run %s is active again: an answer about its silence came too late", self._info.run_id)
                return
            await self._act(decision)
            if self._over or not decision.escalate:
                return

    async def _act(self, decision: Decision) -> None:
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
            self._extended += decision.extend.total_seconds()
            self._write_note()
            # Before the run may die of something else: an extension counts for the run, not for this process.
            await self._control.save_notes()

    def _kill(self, reason: str) -> None:
        self._over = True
        log.warning("run %s is killed: %s", self._info.run_id, reason)
        self._control.kill(reason)

    def _silence(self) -> Silence:
        now = self._now()
        return Silence(
            info=self._info,
            state=self._state,
            silent=timedelta(seconds=now - self._active_at),
            soft_timeout=timedelta(seconds=self._limits.soft),
            until_killed=timedelta(seconds=self._killed_at - now),
            extensions=self._extensions,
        )


def _checked(decision: Decision | None) -> Decision | None:
    if decision is not None and not isinstance(decision, Decision):
        raise CriticError(f"it answered {decision!r:.80}: return a Decision, or None")
    return decision
