"""The scheduler: virtual time, and one ready actor at a time, in an order that a seed chooses."""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.testing.simulation.machine.process import SimulatedProcess


class ProcessDied(BaseException):
    """Raised in the threads and callbacks of a simulated process that was killed, to unwind them."""


class Stuck(Exception):
    """A simulated world makes no progress: too many steps, or a callback waits for what can never happen."""


class Actor(Protocol):
    """The event loop or a thread of a simulated process."""

    process: "SimulatedProcess"
    #: Whether it is in the ready list of the scheduler.
    is_queued: bool

    def run_slice(self) -> bool:
        """Run until the next point where another actor may run. Return whether it is still ready."""
        ...


class VirtualTimer:
    """A callback at a virtual time."""

    __slots__ = ("callback", "process", "when")

    def __init__(self, when: float, process: "SimulatedProcess | None", callback: Callable[[], None]) -> None:
        self.when, self.process = when, process
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Scheduler:
    """Runs actors until none is ready, then lets time jump to the next timer.

    Only one actor runs at a time. So the order depends on the seed alone.
    """

    def __init__(self, seed: int, max_steps: int) -> None:
        self._random = random.Random(seed)
        self._max_steps = max_steps
        self._timers: list[tuple[float, int, VirtualTimer]] = []
        self._order = itertools.count()
        self._ready: list[Actor] = []
        #: Virtual seconds since the world began.
        self.now = 0.0
        #: Slices so far.
        self.steps = 0
        #: The actor that runs now.
        self.current: Actor | None = None
        #: Called between two slices.
        self.before_step: Callable[[], None] | None = None

    @property
    def process(self) -> "SimulatedProcess | None":
        """The simulated process that runs now."""
        return self.current.process if self.current is not None else None

    def draw(self) -> float:
        """Return a random number from 0 to 1."""
        return self._random.random()

    def add_ready(self, actor: Actor) -> None:
        """Let the actor run soon. One of a frozen process runs after its thaw."""
        process = actor.process
        if actor.is_queued or not process.is_alive:
            return
        actor.is_queued = True
        (process.held if process.is_frozen else self._ready).append(actor)

    def remove(self, process: "SimulatedProcess") -> None:
        """Forget all that is ready in the process."""
        for actor in [actor for actor in self._ready if actor.process is process]:
            actor.is_queued = False
            self._ready.remove(actor)

    def freeze(self, process: "SimulatedProcess") -> None:
        process.held += [actor for actor in self._ready if actor.process is process]
        self._ready = [actor for actor in self._ready if actor.process is not process]

    def thaw(self, process: "SimulatedProcess") -> None:
        self._ready += process.held
        process.held.clear()

    def call_at(self, when: float, callback: Callable[[], None], process: "SimulatedProcess | None") -> VirtualTimer:
        timer = VirtualTimer(when, process, callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def clear(self) -> None:
        """Forget everything: the world has ended."""
        self._ready.clear()
        self._timers.clear()

    def run_until(self, is_done: Callable[[], bool], deadline: float) -> bool:
        """Run until `is_done` or the virtual time `deadline`. Return whether `is_done`."""
        while not is_done():
            if self.before_step is not None:
                self.before_step()
            if not self._run_one(self._ready) and not self._jump(deadline):
                return False
        return True

    def run_threads_until(self, is_done: Callable[[], bool]) -> None:
        """Run threads while the event loop of the current process blocks, as in `Thread.join`."""
        blocked = self.current
        assert blocked is not None
        while not is_done():
            if not blocked.process.is_alive:
                raise ProcessDied
            threads = [actor for actor in self._ready if not hasattr(actor, "call_soon")]
            if not self._run_one(threads) and not self._jump(self.now + 600):
                raise Stuck(f"{blocked} blocks, and no thread can run")
        self.current = blocked
        if not blocked.process.is_alive:
            raise ProcessDied

    def _run_one(self, ready: list[Actor]) -> bool:
        if not ready:
            return False
        self.steps += 1
        if self.steps > self._max_steps:
            raise Stuck(f"{self.steps} steps at {self.now:.3f} s")
        actor = ready[int(self._random.random() * len(ready))]
        outer, self.current = self.current, actor
        try:
            is_ready = actor.run_slice()
        finally:
            self.current = outer
        if not is_ready and actor.is_queued:
            actor.is_queued = False
            if actor in self._ready:
                self._ready.remove(actor)
            else:
                actor.process.held.remove(actor)
        return True

    def _jump(self, deadline: float) -> bool:
        """Advance to the next timer and call it. Return False if there is none before `deadline`."""
        while self._timers:
            when, _, timer = self._timers[0]
            if timer.callback is None or (timer.process is not None and not timer.process.is_alive):
                heapq.heappop(self._timers)
                continue
            if when > deadline:
                break
            heapq.heappop(self._timers)
            self.now = max(self.now, when)
            timer.callback()
            return True
        self.now = max(self.now, deadline)
        return False
