"""Counters of the runs that this process executes, by agent. Plain numbers: a run spends under a microsecond a step."""

from bisect import bisect_left

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
        self.input_tokens = self.output_tokens = 0
        self.cost_usd = 0.0

    def add_usage(self, usage: Usage) -> None:
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cost_usd += usage.cost_usd

    def add_attempt(self, end: str) -> None:
        self.attempts[end] = self.attempts.get(end, 0) + 1


class RunMetrics:
    """The counters of all runs of a process. They count up while it lives."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentMetrics] = {}
        #: The runs of the whole store, by agent and status, when they were counted last. Replaced as a whole.
        self.stored_runs: dict[tuple[str, str], int] = {}
        #: By agent: the runs that wait for a worker, and how many seconds the oldest has waited.
        self.queues: dict[str, tuple[int, float]] = {}

    @property
    def agents(self) -> dict[str, AgentMetrics]:
        """The counters by name of the agent. A copy: another thread may read it."""
        return dict(self._agents)

    def get(self, agent: str) -> AgentMetrics:
        """Return the counters of an agent."""
        found = self._agents.get(agent)
        if found is None:
            found = self._agents[agent] = AgentMetrics()
        return found
