"""The report of a comparison: results, criteria, and which model people preferred."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from holdfast.cli.compare.criteria import Check
from holdfast.clock import SYSTEM_CLOCK
from holdfast.fanout.responses import ModelResponse, ResponseStatus
from holdfast.runtime.operations.verdicts import Verdict

log = logging.getLogger("holdfast.cli.compare")


class Preference(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choice of one response over the others."""

    at: datetime = msgspec.field(default_factory=SYSTEM_CLOCK.now)
    prompt: str
    winner: str
    losers: tuple[str, ...]


def append_preference(path: Path | str, preference: Preference) -> None:
    """Append a line. Once this returns it survives a power cut. The earlier lines are never changed.

    Raises:
        OSError: the line could not be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(fd).st_size
        # After a line that a crash cut off, start a new one.
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        rest = memoryview((b"\n" if torn else b"") + msgspec.json.encode(preference) + b"\n")
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def read_preferences(path: Path | str) -> list[Preference]:
    """Read all preferences. Lines that cannot be read are logged and skipped."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    preferences: list[Preference] = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                preferences.append(msgspec.json.decode(line, type=Preference))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            log.warning("%s, line %d is not a preference: %s", path, number, exc)
    return preferences


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Wins and comparisons of one model."""

    model_id: str
    wins: int
    comparisons: int


def compute_scores(path: Path | str) -> list[Score]:
    """Return the score of every model: most wins first, then fewest comparisons."""
    wins: Counter[str] = Counter()
    comparisons: Counter[str] = Counter()
    for preference in read_preferences(path):
        wins[preference.winner] += 1
        comparisons.update({preference.winner, *preference.losers})
    return [
        Score(model_id=model, wins=wins[model], comparisons=count)
        for _, count, model in sorted((-wins[model], count, model) for model, count in comparisons.items())
    ]


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one model."""

    model_id: str
    status: ResponseStatus
    #: Whether the response meets all criteria. `None` without criteria, or if the model has not finished.
    passed: bool | None
    checks: list[Check]
    latency_ms: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: float
    tool_calls: dict[str, int]
    #: Paths of the proposed writes, `+` written or `-` deleted.
    writes: list[str]
    text: str
    error: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all models for one prompt."""

    prompt: str
    rows: list[ReportRow]
    #: The run of the fan-out.
    run_id: str = ""
    #: The response that a person has picked.
    pick: Verdict | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every model has answered or failed."""
        return all(row.status != "interrupted" for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether every model has answered."""
        return all(row.status == "completed" for row in self.rows)


def build_report(
    prompt: str,
    responses: Sequence[ModelResponse],
    checks: Mapping[str, Sequence[Check]] | None = None,
    *,
    run_id: str = "",
    pick: Verdict | None = None,
) -> Report:
    """Build the report on `responses`. `checks` are by model id."""
    rows = [_build_row(response, (checks or {}).get(response.model_id, ())) for response in responses]
    return Report(prompt=prompt, rows=rows, run_id=run_id, pick=pick)


def _build_row(response: ModelResponse, checks: Sequence[Check]) -> ReportRow:
    judged = bool(checks) and not response.interrupted
    return ReportRow(
        model_id=response.model_id,
        status=response.status,
        passed=response.ok and all(check.passed for check in checks) if judged else None,
        checks=list(checks),
        latency_ms=response.latency_ms,
        input_tokens=response.input_tokens,
        output_tokens=response.output_tokens,
        reasoning_tokens=response.reasoning_tokens,
        cost_usd=response.cost_usd,
        tool_calls=response.tool_calls,
        writes=[("-" if write.delete else "+") + write.path for write in response.proposed_writes],
        text=response.text,
        error=response.error,
    )


COLUMNS = ("model", "status", "passed", "time", "in", "out", "reasoning", "cost", "tools", "writes")
#: The columns that hold numbers.
NUMERIC_COLUMNS = ("time", "in", "out", "reasoning", "cost", "tools", "writes")


def format_rows(report: Report) -> list[list[str]]:
    """Return the rows of the table, in the order of `COLUMNS`."""
    return [
        [
            row.model_id,
            row.status,
            "" if row.passed is None else f"{sum(check.passed for check in row.checks)} of {len(row.checks)}",
            f"{timedelta(milliseconds=row.latency_ms).total_seconds():.1f} s",
            f"{row.input_tokens}",
            f"{row.output_tokens}",
            f"{row.reasoning_tokens}",
            f"${row.cost_usd:.4f}",
            f"{sum(row.tool_calls.values())}",
            f"{len(row.writes)}",
        ]
        for row in report.rows
    ]
