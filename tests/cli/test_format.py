"""Amounts as they are shown, and text as it is typed."""

import logging
import sys
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.options import parse_labels, parse_past_time, parse_resolutions
from holdfast.cli.output import UsageError, one_line, sanitize
from holdfast.cli.program import TerminalFormatter
from holdfast.db.urls import redact_url
from holdfast.runtime.reading import formatting


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0 ms"), (0.25, "0.2 s"), (12, "12 s"), (89, "89 s"), (90, "2 min"), (7200, "2 h"), (86400 * 3, "3 d")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert formatting.format_duration(timedelta(seconds=seconds)) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (25_000_000, "25 MB"), (4 * 10**12, "4.0 TB")]
)
def test_sizes(count: int, shown: str) -> None:
    assert formatting.format_size(count) == shown


@pytest.mark.parametrize(("dollars", "shown"), [(0.0, "–"), (0.00123, "$0.0012"), (1.5, "$1.50")])
def test_costs(dollars: float, shown: str) -> None:
    assert formatting.format_cost(dollars) == shown


def test_text_is_cut_and_cleaned() -> None:
    assert one_line("a\n  b", 10) == "a b"
    assert one_line("abcdef", 4) == "abc…"
    assert sanitize("a\u202eb\u2067\x7f\u2028") == "a\ufffdb\ufffd\ufffd\ufffd"
    assert sanitize("a\x1b[2J\tb\n\x9b\ud800") == "a\ufffd[2J\tb\n\ufffd\ufffd"


def test_a_log_record_that_quotes_a_tool_is_one_clean_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_record() -> str:
        try:
            raise RuntimeError("broken\x1b[2J\nforged")
        except RuntimeError as exc:
            record = logging.makeLogRecord({"msg": "call %s failed: %s", "args": ("c1\u202e", exc)})
            record.exc_info = sys.exc_info()
        return TerminalFormatter("holdfast: %(message)s").format(record)

    assert format_record() == "holdfast: call c1\ufffd failed: broken\ufffd[2J forged"
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    shown = format_record()
    assert "Traceback" in shown
    assert not set(shown) & set("\x1b\u202e")


def test_answers_are_json_or_text() -> None:
    assert parse_resolutions(['a={"x": 1}', "b=12", "c=it was sent", "d="]) == {
        "a": {"x": 1}, "b": 12, "c": "it was sent", "d": "",
    }  # fmt: skip
    assert parse_labels(["a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError, match="--resolve CALL=RESULT"):
        parse_resolutions(["=x"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("30m", "2026-05-10T11:30"),
        ("2h", "2026-05-10T10:00"),
        ("1.5d", "2026-05-09T00:00"),
        ("1w", "2026-05-03T12:00"),
        ("2026-05-01T09:00Z", "2026-05-01T09:00"),
        ("2026-05-01T09:00+02:00", "2026-05-01T07:00"),
    ],
)
def test_times_are_durations_ago_or_iso(given: str, expected: str) -> None:
    now = datetime(2026, 5, 10, 12, tzinfo=UTC)
    assert parse_past_time(given, "--since", now) == datetime.fromisoformat(f"{expected}+00:00")


@pytest.mark.parametrize("given", ["yesterday", "2", "-2h", "99999999999w"])
def test_other_times_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_past_time(given, "--since", datetime(2026, 5, 10, tzinfo=UTC))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@db/runs", "postgresql://me:***@db/runs"),
        ("postgresql://me:s3#cret@db:5433/runs", "postgresql://me:***@db:5433/runs"),
        ("postgresql://me:s3?cret@db/runs", "postgresql://me:***@db/runs"),
        ("postgresql://me:s3%40cr%2Fet@db/runs", "postgresql://me:***@db/runs"),
        ("postgresql://me:s3@cret@db/runs", "postgresql://..."),
        ("postgresql://me:s3/cret@db/runs", "postgresql://..."),
        ("postgresql://me:33/cret@db/runs", "postgresql://..."),
        ("postgres://me:s3/cr?et@db/runs", "postgres://..."),
        ("postgresql://db/runs?password=s3cret&sslmode=require", "postgresql://:***@db/runs?sslmode=require"),
        ("postgresql://db/runs?sslpassword=s3cret", "postgresql://db/runs?sslpassword=***"),
        ("postgresql://me@db/runs", "postgresql://me@db/runs"),
        ("postgresql://me@a:1,b:2/runs", "postgresql://me@/runs?host=a,b&port=1,2"),
        ("postgresql://me@/runs?host=/run/pg", "postgresql://me@/runs?host=/run/pg"),
        ("sqlite:a@b.db", "sqlite:a@b.db"),
        ("sqlite:///data/a@b/runs.db", "sqlite:///data/a@b/runs.db"),
        ("sqlite://user:s3cret@db/runs", "sqlite://..."),
        ("sqlite://user:s3/cret@db/runs", "sqlite://..."),
        ("mysql://user:s3cret@db/runs", "mysql..."),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown
