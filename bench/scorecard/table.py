"""The systems of the scorecard, and the page with its table."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from bench.scorecard.judge import FURTHER_RUNS, Scores
from bench.scorecard.ledger import POINTS

#: The rows that some systems make no claim about.
FOUND = "run found again without the caller"
MODELS = "finished model calls repeated"
TOOLS = "finished tool calls repeated"
DOUBLED = "payment doubled"
UNKNOWN = "unknown payment reported"
AGAIN = "finished result returned for the same id"

PAGE = Path(__file__).parents[2] / "docs" / "scorecard.md"
_PINS = Path(__file__).parents[1] / "environments"


class System(NamedTuple):
    name: str
    #: Names its program, and its environment if that has no name of its own.
    module: str
    distribution: str
    #: How it was configured, in some sentences.
    setup: str
    on_postgres: bool = False
    #: Whether it has a server of its own, which is not killed.
    has_server: bool = False
    #: The rows that it makes no claim about.
    unclaimed: Collection[str] = (UNKNOWN,)

    @property
    def finds_runs(self) -> bool:
        return FOUND not in self.unclaimed

    @property
    def environment(self) -> str:
        return self.module.removesuffix("_workflow")


SYSTEMS = (
    System(
        "holdfast, workflow", "holdfast_workflow", "holdfast",
        "SQLite with the defaults, a workflow. A tool for each effect; the payment has the default effect (`once`) and `approval=True`. A restarted App is a"
        " worker. A payment in doubt parks the run; the person who approved says that it was made.",
        unclaimed=(),
    ),
    System(
        "holdfast, agent", "holdfast", "holdfast",
        "The same tools, called by a model. It is asked before each look, so there are six calls of it, each of 150 ms. (A reply that takes less than 100 ms and"
        " asks only for `pure` or `idempotent` tools may be repeated: it is saved up to 2 ms after these have started.) A payment in doubt is reported to the"
        " model.",
        unclaimed=(),
    ),
    System(
        "LangGraph", "langgraph", "langgraph",
        "`AsyncSqliteSaver`, `durability=\"sync\"`, a node for each effect, `interrupt` in a node of its own before the payment. The caller"
        " invokes the thread again by its id. The open-source library does not claim to find interrupted threads.",
        unclaimed=(FOUND, UNKNOWN),
    ),
    System(
        "DBOS", "dbos", "dbos",
        "SQLite, a step for each effect, `recv` for the approval, child workflows for the batch. `DBOS.launch()` recovers.",
    ),
    System(
        "Restate", "restate", "restate-sdk",
        "Its server with the default settings, a workflow with a `ctx.run` for each effect, a durable promise for the approval, `restate.gather` for the"
        " batch. The process with the handlers is killed and started again; the server continues.",
        has_server=True,
    ),
    System(
        "Absurd", "absurd", "absurd-sdk",
        "PostgreSQL, a step for each effect, `await_event` for the approval, `asyncio.gather` for the batch. A worker with a claim timeout of 10 s.",
        on_postgres=True,
    ),
    System(
        "pgtask", "pgtask", "pgtask",
        "PostgreSQL, a step for each effect, a signal for the approval, `asyncio.gather` for the batch. A worker with a lease of 10 s.",
        on_postgres=True,
    ),
    System(
        "pydantic-ai StepPersistence", "step_persistence", "pydantic-ai-harness",
        "`SqliteStepStore`, `capture_frontier=True`, `requires_approval=True` for the payment. The caller continues from the newest snapshot of the"
        " conversation and looks at `list_unresolved_tool_effects`: it reports a payment without an end, and does not repeat it. It claims snapshots of whole"
        " steps: nothing inside a batch, no recovery by itself, no result by id.",
        unclaimed=(FOUND, TOOLS, AGAIN),
    ),
    System(
        "OpenAI Agents sessions", "openai_agents", "openai-agents",
        "`SQLiteSession`, `needs_approval=True`; the caller keeps the `RunState` of a run that waits in a file. A session claims to keep the history of a"
        " conversation, and a `RunState` to outlast an approval; neither claims that a run survives its process. The caller runs the session again with"
        " \"Continue.\", or the state, if the session has no result of the payment.",
        unclaimed=(FOUND, MODELS, TOOLS, DOUBLED, UNKNOWN, AGAIN),
    ),
)  # fmt: skip

_Format = Callable[[Scores], str]


def _count(read: Callable[[Scores], int]) -> _Format:
    return lambda scores: str(read(scores))


def _share(read: Callable[[Scores], int], more: int = 0) -> _Format:
    return lambda scores: f"{read(scores)} of {scores.trials + more}"


#: By the title of the row.
_ROWS: Mapping[str, _Format] = {
    FOUND: _share(attrgetter("found")),
    MODELS: _count(attrgetter("model_calls_repeated")),
    TOOLS: _count(attrgetter("tool_calls_repeated")),
    DOUBLED: _share(attrgetter("payments_doubled")),
    UNKNOWN: lambda scores: f"{scores.unknown_reported} of 1",
    "approval consumed once": lambda scores: "yes" if scores.approval_consumed_once else "no",
    AGAIN: _share(attrgetter("result_again"), 1),
    "storage of a further run": lambda scores: f"{scores.run_bytes / 1024:,.0f} KB",
}
#: Rows whose outcome is worth a sentence where a system does not claim them.
_WORTH_SAYING = (MODELS, TOOLS, DOUBLED, AGAIN)


def describe(system: System, scores: Scores) -> str:
    """Return how the system was configured, and what was seen of what it does not claim."""
    seen = [f"{row}: {_ROWS[row](scores)}" for row in _WORTH_SAYING if row in system.unclaimed]
    return f"- **{system.name}.** {system.setup}" + (f" Not claimed, but seen: {'; '.join(seen)}." if seen else "")


def find_version(system: System) -> str:
    """Return the version that is pinned, or of the package that is installed here."""
    pins = _PINS / f"{system.environment}.txt"
    if not pins.exists():
        return version(system.distribution)
    lines = dict(line.split("==") for line in pins.read_text().split())
    return lines[system.distribution]


def format_page(scores: Mapping[System, Scores], seconds: float) -> str:
    """Return the page as Markdown."""
    head = [f"{system.name} {find_version(system)}" for system in scores]
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---|' * len(head)}"]
    for row, format_cell in _ROWS.items():
        cells = ["" if row in system.unclaimed else format_cell(found) for system, found in scores.items()]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    setups = [describe(system, found) for system, found in scores.items()]
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return _TEXT.format(
        points=len(POINTS),
        table="\n".join(lines),
        further=FURTHER_RUNS,
        setups="\n".join(setups),
        date=date,
        minutes=seconds / 60,
    )


_TEXT = """# Scorecard

One small program, written for each system: three pure steps, a payment that a person approves, a batch of three concurrent calls, and four calls of
a model between them. A process is killed with SIGKILL before and after each of these effects, {points} places in all, and restarted as the
system documents. A ledger outside of the systems has every effect that really happened.

{table}

An empty field: the system does not claim it. Numbers count over all kills. "Finished" means that the kill did not hit this call: a call that a kill
hit after its effect and before its record may be repeated by any system, and counts only for the payment. "Payment doubled" can happen for one
kill, the one after the payment; an idempotency key at the payment provider prevents it in every system. The approval is sent twice.

Storage is measured alike for all: one run, then {further} more; all processes have ended, and the write-ahead logs of SQLite are in their databases. The
difference, divided by {further}, is what a finished run adds. So an empty store, with its tables and preallocated files, does not count.
Databases grow by pages, and Restate keeps its log, so read the order of magnitude.

## How each was configured

{setups}

## Run it

```
make scorecard                                         # all systems, each in an environment of its own
.venv/bin/python -m bench.scorecard holdfast dbos      # some
```

The table is of {date}, two cores, {minutes:.0f} minutes. `bench/scorecard/programs` has the programs, `bench/environments` the versions.
"""
