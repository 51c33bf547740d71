"""The systems of the scorecard, and the page with its table."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bench.scorecard.judge import Scores
from bench.scorecard.ledger import POINTS

PAGE = Path(__file__).parents[2] / "docs" / "scorecard.md"
_PINS = Path(__file__).parents[1] / "environments"


class System(NamedTuple):
    name: str
    #: For its program, and of its environment.
    module: str
    distribution: str
    #: How it was configured, in one sentence.
    setup: str
    on_postgres: bool = False
    #: Whether it claims to find interrupted runs by itself.
    finds_runs: bool = True
    #: Whether it claims to report a call with an unknown outcome.
    reports_unknown: bool = False


SYSTEMS = (
    System(
        "holdfast", "holdfast", "holdfast",
        "SQLite with the defaults. The payment is a tool with the default effect (`once`) and `approval=True`. A restarted App is a worker. The looks are `pure`: their reply is not saved before they start, unless they take longer than 2 ms, so a kill before or after one of them repeats the model call before it; with the default effect it is saved first. Its model is also asked before the second and the third look; the ledger does not count these calls, which would be repeated in the same way.",
        reports_unknown=True,
    ),
    System(
        "LangGraph", "langgraph", "langgraph",
        "`AsyncSqliteSaver`, `durability=\"sync\"`, a node for each effect, `interrupt` in a node of its own before the payment. The caller"
        " invokes the thread again by its id. The open-source library does not claim to find interrupted threads.",
        finds_runs=False,
    ),
    System(
        "DBOS", "dbos", "dbos",
        "SQLite, a step for each effect, `recv` for the approval, child workflows for the batch. `DBOS.launch()` recovers.",
    ),
    System(
        "Absurd", "absurd", "absurd-sdk",
        "PostgreSQL, a step for each effect, `await_event` for the approval, `asyncio.gather` for the batch. A worker with a claim timeout of 3 s.",
        on_postgres=True,
    ),
    System(
        "pgtask", "pgtask", "pgtask",
        "PostgreSQL, a step for each effect, a signal for the approval, `asyncio.gather` for the batch. A worker with a lease of 3 s.",
        on_postgres=True,
    ),
)  # fmt: skip


class _Row(NamedTuple):
    title: str
    format: Callable[[System, Scores], str]


def _format_found(system: System, scores: Scores) -> str:
    return f"{scores.found} of {scores.trials}" if system.finds_runs else ""


def _format_unknown(system: System, scores: Scores) -> str:
    return f"{scores.unknown_reported} of 1" if system.reports_unknown else ""


def _format_once(system: System, scores: Scores) -> str:
    return "yes" if scores.approval_consumed_once else "no"


def _format_size(system: System, scores: Scores) -> str:
    return f"{scores.storage_bytes / 1024:,.0f} KB"


def _format_again(system: System, scores: Scores) -> str:
    return f"{scores.result_again} of {scores.trials + 1}"


_ROWS = (
    _Row("run found again without the caller", _format_found),
    _Row("finished model calls repeated", lambda system, scores: str(scores.model_calls_repeated)),
    _Row("finished tool calls repeated", lambda system, scores: str(scores.tool_calls_repeated)),
    _Row("payment doubled", lambda system, scores: f"{scores.payments_doubled} of {scores.trials}"),
    _Row("unknown payment reported", _format_unknown),
    _Row("approval consumed once", _format_once),
    _Row("finished result returned for the same id", _format_again),
    _Row("storage after the end of one run", _format_size),
)


def find_version(system: System) -> str:
    """Return the version that is pinned, or of the package that is installed here."""
    pins = _PINS / f"{system.module}.txt"
    if not pins.exists():
        return version(system.distribution)
    lines = dict(line.split("==") for line in pins.read_text().split())
    return lines[system.distribution]


def write_page(scores: Mapping[System, Scores], seconds: float) -> None:
    """Write the page."""
    PAGE.write_text(format_page(scores, seconds))


def format_page(scores: Mapping[System, Scores], seconds: float) -> str:
    """Return the page as Markdown."""
    head = [f"{system.name} {find_version(system)}" for system in scores]
    lines = [f"| | {' | '.join(head)} |", f"|---|{'---|' * len(head)}"]
    for row in _ROWS:
        cells = [row.format(system, found) for system, found in scores.items()]
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    setups = [f"- **{system.name}.** {system.setup}" for system in scores]
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return _TEXT.format(
        points=len(POINTS), table="\n".join(lines), setups="\n".join(setups), date=date, minutes=seconds / 60
    )


_TEXT = """# Scorecard

One small program, written for each system: three pure steps, a payment that a person approves, a batch of three concurrent calls, and four calls of
a model between them. A process is killed with SIGKILL before and after each of these effects, {points} places in all, and restarted as the
system documents. A ledger outside of the systems has every effect that really happened.

{table}

An empty field: the system does not claim it. Numbers count over all kills. "Finished" means that the kill did not hit this call: a call that a kill
hit after its effect and before its record may be repeated by any system, and counts only for the payment. "Payment doubled" can happen for one
kill, the one after the payment; an idempotency key at the payment provider prevents it in every system. The approval is sent twice. Storage of
systems on PostgreSQL contains their tables, indexes and functions.

## How each was configured

{setups}

Not in the table: Restate, pydantic-ai StepPersistence and sessions of the OpenAI Agents SDK. Their programs are not written yet.

## Run it

```
make scorecard                                         # all systems, each in an environment of its own
.venv/bin/python -m bench.scorecard holdfast dbos      # some
```

The table is of {date}, two cores, {minutes:.0f} minutes for all systems at once. `bench/scorecard/programs` has the programs, `bench/environments` the versions.
"""
