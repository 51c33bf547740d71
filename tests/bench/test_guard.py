"""The guard's results."""

import pytest
from bench.figures import Figures, Spread
from bench.guard import compare, format_results, our_ratios
from tests.bench.sample_records import many_runs, one_run

KEY = "w1 1000 holdfast sqlite: step"


def measured(ratio: float) -> Figures:
    return Figures([one_run("raw", "sqlite-1", 1.0), one_run("holdfast", "sqlite", ratio)])


@pytest.mark.parametrize(("now", "change"), [(2.5, "worse"), (2.2, "same"), (1.8, "same"), (1.5, "better")])
def test_a_change_beyond_the_noise_is_reported(now: float, change: str) -> None:
    (result,) = compare(measured(now), {KEY: Spread(2.0, 1.98, 2.02)})
    assert result.change == change


def test_the_wider_the_baseline_was_spread_the_more_is_noise() -> None:
    (result,) = compare(measured(2.5), {KEY: Spread(2.0, 1.6, 2.4)})
    assert result.change == "same"


def test_of_a_rate_less_is_worse() -> None:
    found = Figures([many_runs("raw", "sqlite-group-1", 1000), many_runs("holdfast", "sqlite", 300)])
    (result,) = compare(found, {"w2 128 holdfast sqlite: rate": Spread(0.6, 0.58, 0.62)})
    assert result.change == "worse"
    assert format_results([result]).endswith(
        "w2 128 holdfast sqlite: rate was 0.60 and is 0.30: 50% worse, 15% would be noise"
    )


def test_more_on_disk_is_worse_by_itself() -> None:
    before = our_ratios(Figures([one_run("holdfast", "sqlite", 1.0, disk=2)]))
    results = compare(Figures([one_run("holdfast", "sqlite", 1.0, disk=3)]), before)
    assert [result.key for result in results if result.change == "worse"] == ["w1 1000 holdfast sqlite: disk"]


def test_an_accepted_baseline_compares_equal_and_has_no_limits_or_peers() -> None:
    found = Figures(
        [one_run("raw", "sqlite-1", 1.0), one_run("holdfast", "sqlite", 1.2), one_run("dbos", "sqlite", 9.0)]
    )
    baseline = our_ratios(found)
    assert all("holdfast" in key for key in baseline)
    assert {result.change for result in compare(found, baseline)} == {"same"}
