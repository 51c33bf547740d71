"""Kills an agent everywhere, and sees whether it goes on."""

import os
import queue
import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from holdfast.checkpoint.opening import store_from_url
from holdfast.testing.crash.importing import place_of
from holdfast.testing.crash.life import Subject
from holdfast.testing.crash.process import Nursery
from holdfast.testing.crash.report import CrashReport, CrashTestFailed, Trial
from holdfast.testing.crash.trials import Laboratory, StoreForTrial, plans


def crash_everywhere(
    agent: Any,
    prompt: str,
    *,
    store: StoreForTrial = "sqlite:{folder}/runs.db",
    open_store: Any = store_from_url,
    options: Any = None,
    crashes: int = 1,
    sample: int | None = None,
    seed: int | None = None,
    at_once: int | None = None,
    folder: Path | None = None,
    patience: float = 30.0,
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
    subject = Subject(
        agent=place_of(agent),
        open_store=place_of(open_store),
        options=None if options is None else place_of(options),
        prompt=prompt,
        run_id="crash-test",
        patience=patience,
    )
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-crash-")))
        laboratory = Laboratory(subject, store, folder)
        nurseries = [
            stack.enter_context(closing(Nursery(subject))) for _ in range(at_once or min(8, os.cpu_count() or 1))
        ]
        points = laboratory.unharmed(nurseries[0])
        chance = random.Random(seed)
        trials: list[Callable[[Nursery], Trial]]
        if crashes == 1:
            chosen = points if sample is None or sample >= len(points) else chance.sample(points, sample)
            trials = [lambda nursery, point=point: laboratory.crash_at(nursery, point) for point in chosen]  # type: ignore[misc]
        else:
            chosen_plans = plans(sample or len(points), crashes, len(points), chance)
            trials = [lambda nursery, plan=plan: laboratory.crash_repeatedly(nursery, plan) for plan in chosen_plans]  # type: ignore[misc]
        report = CrashReport(
            agent=str(subject.agent),
            points=tuple(point.name for point in points),
            trials=tuple(_made(trials, nurseries)),
            seed=seed,
        )
    if report.failed:
        raise CrashTestFailed(str(report), report)
    return report


def _made(trials: Sequence[Callable[[Nursery], Trial]], nurseries: Sequence[Nursery]) -> list[Trial]:
    """The trials' outcomes, in their order; each nursery makes one at a time."""
    free: queue.SimpleQueue[Nursery] = queue.SimpleQueue()
    for nursery in nurseries:
        free.put(nursery)

    def make(trial: Callable[[Nursery], Trial]) -> Trial:
        nursery = free.get()
        try:
            return trial(nursery)
        finally:
            free.put(nursery)

    with ThreadPoolExecutor(len(nurseries)) as threads:
        return list(threads.map(make, trials))
