"""The examples of workflows, killed with SIGKILL before and after each of their effects, finish as if they were not."""

import importlib.util
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from holdfast import App

EXAMPLES = Path(__file__).parents[2] / "examples"

TRIP = ["book flight", "book hotel", "cancel hotel", "cancel flight"]
ORDER = ["pay o-7 25", "ship o-7"]
CITIES = ["Lisbon", "Porto", "Faro"]
RESEARCH = [f"{what} tea in {city}" for city in CITIES for what in ("ask about", "search", "sum up")]


def list_points(lines: Sequence[str]) -> list[str]:
    return [f"{when} {line}" for line in lines for when in ("before", "after")]


def execute(example: str, argument: str, folder: Path) -> tuple[int, str]:
    program = [sys.executable, str(EXAMPLES / f"{example}.py"), argument]
    done = subprocess.run(program, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    return done.returncode, done.stdout


def run_with_kill(example: str, point: str, folder: Path) -> tuple[str, list[str]]:
    """Kill the first process at the point. Return what the second one printed, and the ledger."""
    code, _ = execute(example, point, folder)
    assert code == -signal.SIGKILL
    code, printed = execute(example, "to the end", folder)
    assert code == 0
    return printed, (folder / "ledger.txt").read_text().splitlines()


@pytest.mark.parametrize("point", list_points(TRIP))
def test_a_trip_is_booked_and_cancelled_once(point: str, tmp_path: Path) -> None:
    printed, ledger = run_with_kill("trip_saga", point, tmp_path)
    assert printed == "no trip to Porto: there is no car left\n"
    assert ledger == TRIP


@pytest.mark.parametrize(
    "point", ["while asked", *(f"{when} {line}" for line in ORDER for when in ("before", "after"))]
)
def test_an_order_is_paid_once(point: str, tmp_path: Path) -> None:
    printed, ledger = run_with_kill("order_workflow", point, tmp_path)
    assert printed.endswith("receipt o-7 25, o-7 is on its way\n")
    assert Counter(ledger) - Counter(["ship o-7"]) <= Counter(ORDER), "only the idempotent call may be repeated"
    assert set(ledger) == set(ORDER)


@pytest.mark.parametrize("point", list_points(RESEARCH))
def test_research_repeats_nothing_that_an_agent_has_finished(point: str, tmp_path: Path) -> None:
    printed, ledger = run_with_kill("research_agent", point, tmp_path)
    pages = "".join(f"tea in {city}: three pages about tea in {city}\n" for city in CITIES)
    assert printed == f"published:\n{pages}"
    assert len([line for line in ledger if line.startswith("publish")]) == 1
    for city in CITIES:
        mine = [line for line in ledger if line.endswith(f"tea in {city}")]
        # The model sums up what is recorded: from then on there is no reason to search.
        assert set(mine[mine.index(f"sum up tea in {city}") :]) == {f"sum up tea in {city}"}
        assert f"{mine[0]}, {mine[-1]}" == f"ask about tea in {city}, sum up tea in {city}"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


async def test_an_order_that_nobody_approves_in_time_is_not_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    example = load_example("order_workflow")
    order = example.Order("o-8", ["tea"], timeout=timedelta(milliseconds=10))
    async with App([example.fulfil], "sqlite:runs.db") as app:
        result = await app.run(example.fulfil, inputs={"order": order}, run_id="o-8")
    assert result.output == "o-8 was not ordered"
    assert not (tmp_path / "ledger.txt").exists()
