"""Counters of the runs that this process executes, by agent: an observer of their attempts. Plain numbers."""

from bisect import bisect_left

from holdfast.core.observer import (
    AttemptControl,
    AttemptEnded,
    AttemptStarted,
    CallFailed,
    CallInDoubt,
    ClaimVerified,
    ObservedEvent,
    Retried,
    Saved,
    StepEnded,
)
from holdfast.core.run.messages import Usage

#: Upper bounds of the buckets of a histogram, in seconds.
BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0)


class Histogram:
    """Counts durations by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        #: One for each of `BUCKETS`, and one for what is longer.
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class AgentMetrics:
    """The counters of the runs of one agent."""

    __slots__ = (
        "attempts",
        "calls_in_doubt",
        "claim_checks",
        "cost_usd",
        "failed_calls",
        "input_tokens",
        "model_retries",
        "output_tokens",
        "saves",
        "steps",
        "strikes",
        "takeovers",
        "tool_retries",
    )

    def __init__(self) -> None:
        #: Attempts that ended, by `AttemptEnd`.
        self.attempts: dict[str, int] = {}
        #: The time of a step, and the time that a run waited for a save, and for a check of its claim.
        self.steps, self.saves, self.claim_checks = Histogram(), Histogram(), Histogram()
        self.model_retries = self.tool_retries = 0
        #: Attempts that began after one without a finished step, and those that began because a worker died.
        self.strikes = self.takeovers = 0
        self.calls_in_doubt = 0
        #: Failed calls, by tool.
        self.failed_calls: dict[str, int] = {}
        self.input_tokens = self.output_tokens = 0
        self.cost_usd = 0.0

    def add_usage(self, before: Usage, now: Usage) -> None:
        """Count what a run has used between two totals."""
        self.input_tokens += now.input_tokens - before.input_tokens
        self.output_tokens += now.output_tokens - before.output_tokens
        self.cost_usd += now.cost_usd - before.cost_usd

    def add_failed_call(self, tool: str) -> None:
        self.failed_calls[tool] = self.failed_calls.get(tool, 0) + 1

    def add_attempt(self, end: str) -> None:
        self.attempts[end] = self.attempts.get(end, 0) + 1


class AttemptMetrics:
    """Counts what one attempt does."""

    __slots__ = ("_counted", "_counters", "_state", "_taken_from")

    kinds: frozenset[type] = frozenset(
        {AttemptStarted, AttemptEnded, StepEnded, Saved, ClaimVerified, Retried, CallFailed, CallInDoubt}
    )

    def __init__(self, attempt: AttemptControl, counters: AgentMetrics) -> None:
        self._counters, self._state, self._taken_from = counters, attempt.state, attempt.taken_from
        #: The usage of the run that is counted, here or in an earlier attempt.
        self._counted = attempt.state.own_usage

    def observe(self, event: ObservedEvent) -> None:
        counters = self._counters
        match event:
            case Saved():
                counters.saves.add(event.took_seconds)
            case StepEnded():
                if event.took_seconds is not None:
                    counters.steps.add(event.took_seconds)
                counters.add_usage(self._counted, self._state.own_usage)
                self._counted = self._state.own_usage
            case ClaimVerified():
                counters.claim_checks.add(event.took_seconds)
            case Retried() if event.tool:
                counters.tool_retries += 1
            case Retried():
                counters.model_retries += 1
            case CallInDoubt():
                counters.calls_in_doubt += 1
            case CallFailed():
                counters.add_failed_call(event.call.tool)
            case AttemptStarted() if self._taken_from is not None:
                counters.takeovers += 1
            case AttemptEnded():
                counters.add_usage(self._counted, self._state.own_usage)
                counters.add_attempt(event.end.value)


class RunMetrics:
    """The counters of all runs of a process. They count up while it lives. An `ObserverFactory`."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentMetrics] = {}
        #: The runs of the whole store, by agent and status, when they were last counted. Replaced as a whole.
        self.stored_runs: dict[tuple[str, str], int] = {}
        #: The runs that wait for a worker, and how many seconds the oldest has waited, by agent.
        self.queues: dict[str, tuple[int, float]] = {}

    @property
    def agents(self) -> dict[str, AgentMetrics]:
        """The counters by name of the agent. A copy: another thread may read it."""
        return dict(self._agents)

    def begin(self, attempt: AttemptControl) -> AttemptMetrics:
        """Count what the attempt does."""
        return AttemptMetrics(attempt, self.get(attempt.info.agent_name))

    def get(self, agent: str) -> AgentMetrics:
        """Return the counters of an agent."""
        found = self._agents.get(agent)
        if found is None:
            found = self._agents[agent] = AgentMetrics()
        return found
