"""The metrics of a process and its store in the text format of Prometheus.

Labels are the names of agents and a few fixed words: never a run id or a caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate

from holdfast.checkpoint.fleet import RunCount, measure_queues
from holdfast.core.observation.metrics import BUCKETS, AgentMetrics, Histogram, RunMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Samples = Iterable[tuple[Mapping[str, str], float]]

#: By name: the description, and the values of one agent with their labels.
_COUNTERS: Mapping[str, tuple[str, Callable[[AgentMetrics], _Samples]]] = {
    "holdfast_attempts_total": (
        "Attempts of runs that ended in this process.",
        lambda agent: [({"outcome": outcome}, count) for outcome, count in sorted(agent.attempts.items())],
    ),
    "holdfast_retries_total": (
        "Calls that failed and were made again.",
        lambda agent: [({"call": "model"}, agent.model_retries), ({"call": "tool"}, agent.tool_retries)],
    ),
    "holdfast_strikes_total": ("Attempts that began after one without a step.", lambda agent: [({}, agent.strikes)]),
    "holdfast_takeovers_total": ("Runs taken over from dead workers.", lambda agent: [({}, agent.takeovers)]),
    "holdfast_calls_in_doubt_total": ("Calls whose outcome is unknown.", lambda agent: [({}, agent.calls_in_doubt)]),
    "holdfast_tokens_total": (
        "Tokens of model calls.",
        lambda agent: [({"type": "input"}, agent.input_tokens), ({"type": "output"}, agent.output_tokens)],
    ),
    "holdfast_cost_usd_total": ("Cost of model calls.", lambda agent: [({}, agent.cost_usd)]),
}


def render_metrics(metrics: RunMetrics, counts: Sequence[RunCount], now: datetime) -> str:
    """Return the counters of this process, and the counts of its store, as text."""
    agents = sorted(metrics.agents.items())
    lines = _render_counts(counts, now)
    for name, (description, read) in _COUNTERS.items():
        samples = [({"agent": agent, **labels}, value) for agent, found in agents for labels, value in read(found)]
        lines += _render_family(name, "counter", description, samples)
    lines += _render_histograms(
        "holdfast_step_seconds", "Duration of steps.", [(agent, found.steps) for agent, found in agents]
    )
    lines += _render_histograms(
        "holdfast_save_seconds", "Time that runs waited for saves.", [(agent, found.saves) for agent, found in agents]
    )
    return "\n".join(lines) + "\n"


def _render_counts(counts: Sequence[RunCount], now: datetime) -> list[str]:
    runs = [({"agent": each.agent_name, "status": each.status.value}, each.count) for each in counts]
    queues = measure_queues(counts, now)
    due = {agent: depth for agent, (depth, _) in queues.items()}
    ages = {agent: age for agent, (_, age) in queues.items()}
    return [
        *_render_family("holdfast_runs", "gauge", "Runs in the store.", runs),
        *_render_family("holdfast_queue_depth", "gauge", "Runs that wait for a worker.", _by_agent(due)),
        *_render_family(
            "holdfast_queue_age_seconds", "gauge", "How long the oldest of them has waited.", _by_agent(ages)
        ),
    ]


def _by_agent(values: Mapping[str, float]) -> _Samples:
    return [({"agent": agent}, value) for agent, value in values.items()]


def _render_family(name: str, kind: str, description: str, samples: _Samples) -> list[str]:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_render_labels(labels)} {value:.12g}" for labels, value in samples]


def _render_histograms(name: str, description: str, found: Sequence[tuple[str, Histogram]]) -> list[str]:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} histogram"]
    for agent, histogram in found:
        counts = list(accumulate(histogram.counts))
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
            lines.append(f"{name}_bucket{_render_labels({'agent': agent, 'le': bound})} {count}")
        lines.append(f"{name}_sum{_render_labels({'agent': agent})} {histogram.total:.12g}")
        lines.append(f"{name}_count{_render_labels({'agent': agent})} {counts[-1]}")
    return lines


def _render_labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
