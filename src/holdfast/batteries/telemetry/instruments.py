"""The metrics as OpenTelemetry instruments."""

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from holdfast.core.metrics import AgentMetrics, RunMetrics
from holdfast.core.run.messages import Usage

_Values = Iterable[tuple[Mapping[str, str], float]]

#: By name: the description, the unit, and the values of one agent with their attributes.
_COUNTERS: Mapping[str, tuple[str, str, Callable[[AgentMetrics], _Values]]] = {
    "holdfast.attempts": (
        "Attempts of runs that ended",
        "{attempt}",
        lambda agent: [({"holdfast.end": end}, count) for end, count in list(agent.attempts.items())],
    ),
    "holdfast.retries": (
        "Calls that failed and are retried",
        "{retry}",
        lambda agent: [
            ({"holdfast.call": "model"}, agent.model_retries),
            ({"holdfast.call": "tool"}, agent.tool_retries),
        ],
    ),
    "holdfast.strikes": ("Attempts after one without a step", "{attempt}", lambda agent: [({}, agent.strikes)]),
    "holdfast.takeovers": ("Runs taken from dead workers", "{run}", lambda agent: [({}, agent.takeovers)]),
    "holdfast.calls_in_doubt": ("Calls without a known outcome", "{call}", lambda agent: [({}, agent.calls_in_doubt)]),
    "holdfast.failed_calls": (
        "Tool calls that failed",
        "{call}",
        lambda agent: [({"gen_ai.tool.name": tool}, count) for tool, count in list(agent.failed_calls.items())],
    ),
    "holdfast.cost": ("Cost of model calls", "USD", lambda agent: [({}, agent.cost_usd)]),
}


class Instruments:
    """Histograms, which runs fill, and counters, which the SDK reads from `RunMetrics` when it exports."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._steps = meter.create_histogram("holdfast.step.duration", "s", "Duration of steps")
        self._saves = meter.create_histogram("holdfast.save.duration", "s", "Time that runs waited for saves")
        self._operations = meter.create_histogram("gen_ai.client.operation.duration", "s", "Duration of model calls")
        # The older name of the conventions, beside the counters that replace it, for one release.
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens of model calls")
        usage, count = "gen_ai.client.inference.usage.", meter.create_counter
        self._input = count(f"{usage}input_tokens", "{token}", "Tokens that models have read")
        self._output = count(f"{usage}output_tokens", "{token}", "Tokens that models have written")
        self._reasoning = count(f"{usage}reasoning.output_tokens", "{token}", "Those of them that were reasoning")

    def export(self, metrics: RunMetrics) -> None:
        """Export the counters of a process."""
        for name, (description, unit, read) in _COUNTERS.items():
            self._meter.create_observable_counter(
                name, callbacks=[_make_callback(metrics, read)], unit=unit, description=description
            )

        self._observe_store(metrics)

    def _observe_store(self, metrics: RunMetrics) -> None:
        """Export what is known about the whole store."""

        def observe_runs(options: CallbackOptions) -> Iterable[Observation]:
            for (agent, status), count in metrics.stored_runs.items():
                yield Observation(count, {"gen_ai.agent.name": agent, "holdfast.status": status})

        def observe_depth(options: CallbackOptions) -> Iterable[Observation]:
            for agent, (depth, _) in metrics.queues.items():
                yield Observation(depth, {"gen_ai.agent.name": agent})

        def observe_age(options: CallbackOptions) -> Iterable[Observation]:
            for agent, (_, age) in metrics.queues.items():
                yield Observation(age, {"gen_ai.agent.name": agent})

        create = self._meter.create_observable_gauge
        create("holdfast.runs", [observe_runs], "{run}", "Runs in the store")
        create("holdfast.queue.depth", [observe_depth], "{run}", "Runs that wait for a worker")
        create("holdfast.queue.age", [observe_age], "s", "How long the oldest of them has waited")

    def add_step(self, agent: str, seconds: float) -> None:
        self._steps.record(seconds, {"gen_ai.agent.name": agent})

    def add_save(self, agent: str, seconds: float) -> None:
        self._saves.record(seconds, {"gen_ai.agent.name": agent})

    def add_model_call(self, seconds: float, attributes: Mapping[str, str]) -> None:
        """Add a model call that has replied or failed. The attributes name the agent, the model and the error."""
        self._operations.record(seconds, attributes)

    def add_tokens(self, usage: Usage, attributes: Mapping[str, str]) -> None:
        """Add the tokens of a model call that has replied. The attributes name the agent and the model."""
        self._tokens.record(usage.input_tokens, {**attributes, "gen_ai.token.type": "input"})
        self._tokens.record(usage.output_tokens, {**attributes, "gen_ai.token.type": "output"})
        self._input.add(usage.input_tokens, attributes)
        self._output.add(usage.output_tokens, attributes)
        self._reasoning.add(usage.reasoning_tokens, attributes)


def _make_callback(
    metrics: RunMetrics, read: Callable[[AgentMetrics], _Values]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        for name, agent in metrics.agents.items():
            for attributes, value in read(agent):
                yield Observation(value, {"gen_ai.agent.name": name, **attributes})

    return observe
