"""The quantities that are read from the result of a job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["less", "more"]
Read = Callable[[dict[str, Any], dict[str, int]], float]


@dataclass(frozen=True)
class Measure:
    """One quantity, read from a result and from the numbers of its job."""

    name: str
    title: str
    unit: str
    read: Read
    better: Better = "less"
    #: What the guard compares: the ratio to the limit, the value itself because it is a ratio, or nothing.
    ratio: Literal["limit", "itself", "none"] = "none"
    #: Whether the tables show it in every size, or only in the largest.
    every_size: bool = False


def _of_result(name: str, factor: float = 1.0) -> Read:
    return lambda result, numbers: float(result[name]) * factor


def _quotient(over: str, under: str) -> Read:
    return lambda result, numbers: float(result[over]) / float(result[under])


STEP = Measure(
    "step", "a step", "ms", lambda r, n: r["seconds"] / n["steps"] * 1e3, ratio="limit", every_size=True
)  # fmt: skip
FIRST = Measure("first steps", "first hundred steps", "ms", _of_result("first_steps", 1e3))
LAST = Measure("last steps", "last hundred steps", "ms", _of_result("last_steps", 1e3))
GROWTH = Measure("growth", "last / first", "×", _quotient("last_steps", "first_steps"), ratio="itself")
DISK = Measure("disk", "disk / transcript", "×", _quotient("disk_bytes", "transcript_bytes"), ratio="itself")
WRITTEN = Measure(
    "written", "written / transcript", "×", _quotient("written_bytes", "transcript_bytes"), ratio="itself"
)
RATE = Measure(
    "rate", "steps a second", "/s", lambda r, n: r["runs"] * r["steps"] / r["seconds"], "more", "limit", every_size=True
)
P50 = Measure("p50", "p50 of a step", "ms", lambda r, n: r["latencies"]["p50"] * 1e3)
P99 = Measure("p99", "p99 of a step", "ms", lambda r, n: r["latencies"]["p99"] * 1e3)
BUSY = Measure("busy", "processors busy", "%", _of_result("machine_busy", 100), every_size=True)

RECOVERY = tuple(
    Measure(name, title, "s", _of_result(name), ratio="limit", every_size=True)
    for name, title in (
        ("find", "found"),
        ("load", "all read"),
        ("first", "first resumed step"),
        ("last", "all resumed"),
    )
)

CONVERSATION = (
    Measure("second turn", "turn 2", "ms", _of_result("second_seconds", 1e3)),
    Measure("late turn", "turn 200", "ms", _of_result("late_seconds", 1e3)),
    Measure("turn growth", "turn 200 / turn 2", "×", _quotient("late_seconds", "second_seconds"), ratio="itself"),
    Measure("turn bytes", "bytes, turn 200 / turn 2", "×", _quotient("late_bytes", "second_bytes"), ratio="itself"),
    Measure("cold turn", "a late turn in another process", "ms", _of_result("cold_seconds", 1e3)),
)  # fmt: skip

WAITING = (
    Measure("memory", "memory a run", "KB", lambda r, n: r["memory_bytes"] / n["runs"] / 1e3),
    Measure("processor", "idle, of one processor", "%", _of_result("cpu_share", 100)),
    Measure("idle", "written a second", "KB", lambda r, n: r["written_bytes"] / n["seconds"] / 1e3),
)

SCALE = tuple(
    Measure(name, title, "ms", _of_result(name, 1e3), every_size=True)
    for name, title in (
        ("submit", "submit"),
        ("claim", "claim"),
        ("page", "first page"),
        ("wake", "signal to next model call"),
        ("purge", "purge of 500 runs"),
    )
)

WATCHERS = (
    Measure("watched step", "a step", "ms", _of_result("step", 1e3), every_size=True),
    Measure("slowdown", "of a plain run", "×", _quotient("step", "plain_step"), ratio="itself", every_size=True),
)  # fmt: skip

WORKFLOWS = (
    Measure("workflows", "workflows a second", "/s", lambda r, n: r["runs"] / r["seconds"], "more", "limit",
            every_size=True),
    Measure("workflow p50", "p50", "ms", lambda r, n: r["latencies"]["p50"] * 1e3, every_size=True),
    Measure("workflow p99", "p99", "ms", lambda r, n: r["latencies"]["p99"] * 1e3, every_size=True),
    Measure("workflow cpu", "processor time", "ms", lambda r, n: r["cpu"] / r["runs"] * 1e3, every_size=True),
)  # fmt: skip
#: The table shows it for the longest workflow.
WORKFLOW_STEP = Measure(
    "workflow step", "a step", "ms", lambda r, n: r["seconds"] / r["runs"] / r["steps"] * 1e3, ratio="limit"
)
SLEEPS = (
    Measure("sleep", "a sleep", "ms", lambda r, n: r["seconds"] / n["sleeps"] * 1e3, ratio="limit", every_size=True),
    Measure("first sleeps", "first hundred sleeps", "ms", _of_result("first_steps", 1e3)),
    Measure("last sleeps", "last hundred sleeps", "ms", _of_result("last_steps", 1e3)),
    Measure("sleep growth", "last / first", "×", _quotient("last_steps", "first_steps"), ratio="itself"),
)

PROCESSOR = Measure("cpu", "processor time a step", "ms", lambda r, n: r["cpu"] / r["runs"] / r["steps"] * 1e3)
