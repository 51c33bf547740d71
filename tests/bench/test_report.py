"""The report: every number with its spread and ratio, and what was not measured said in words."""

from pathlib import Path
from typing import Any

from bench.report import BEGIN, END, details_page, front_page, put_into
from tests.bench.sample_records import many_runs, one_run, record, results


def row_of(report: str, name: str) -> str:
    (row,) = [line for line in report.splitlines() if line.startswith(f"| {name} |")]
    return row


def test_a_row_has_median_spread_and_ratio() -> None:
    report = details_page(
        results(
            *(one_run("raw", "sqlite-1", 0.5, repeat=at) for at in range(3)),
            *(one_run("holdfast", "sqlite", seconds, repeat=at) for at, seconds in enumerate((0.7, 0.6, 0.9))),
        )
    )
    assert "0.7 ms (0.6–0.9), **1.40×**" in row_of(report, "holdfast sqlite")


def test_a_failure_a_cap_and_a_caveat_are_shown() -> None:
    unfair = many_runs("restate", "server", 300)
    assert unfair.result is not None
    unfair.result["caveat"] = "It syncs four times."
    report = details_page(
        results(
            many_runs("holdfast", "postgres", 3000),
            record("w2", "dbos", "postgres", 128, failed="PoolTimeout"),
            unfair,
            one_run("langgraph", "sqlite", 30.0, size=100),
            one_run("langgraph", "sqlite-delta", 30.0, size=5000),
        )
    )
    assert "| failed |" in row_of(report, "dbos postgres")
    assert "- dbos postgres at 128 runs failed: `PoolTimeout`" in report
    assert "- restate: It syncs four times." in report
    assert "| not measured |" in row_of(report, "langgraph sqlite")
    assert "langgraph sqlite is measured up to 100 steps" in report


def test_the_first_table_has_a_row_for_each_system_and_leaves_blank_what_is_not_known() -> None:
    page = front_page(
        results(
            one_run("holdfast", "sqlite-once", 0.9, disk=2),
            many_runs("dbos", "postgres", 80.0),
            record("w3", "dbos", "postgres", 200, first=1.5),
        )
    )
    assert row_of(page, "**holdfast, SQLite**") == "| **holdfast, SQLite** | 0.9 ms |  | 2× |  |  |  |"
    assert row_of(page, "DBOS, PostgreSQL") == "| DBOS, PostgreSQL |  |  |  | 80/s |  | 1.5 s |"


def test_workflows_have_tables_of_their_own_once_they_are_measured() -> None:
    timed: dict[str, Any] = {"runs": 100, "steps": 3, "latencies": {"p50": 0.004, "p99": 0.02}}
    page = front_page(
        results(
            record("w11", "holdfast", "sqlite", 3, seconds=0.5, **timed),
            record("w11", "raw", "sqlite-1", 3, seconds=0.25, **timed),
            record("w12", "raw", "sqlite-group-1", 3, seconds=0.25, **timed),
        )
    )
    alone, crowd = (page.partition(title)[2] for title in ("one after the other", "128 at a time"))
    assert row_of(alone.partition("128")[0], "**holdfast, SQLite**").startswith(
        "| **holdfast, SQLite** |  |  | 4 ms | 20 ms |"
    )
    assert row_of(crowd, "raw group commit, SQLite").startswith("| raw group commit, SQLite |  |  |  | 400/s | 4 ms |")
    assert "sleeps 1,000 times" not in page


def test_the_page_keeps_the_text_around_the_generated_part(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for new in ("first", "second"):
        put_into(page, new)
    assert page.read_text() == f"before\n{BEGIN}\n\nsecond\n\n{END}\nafter\n"
