"""A sample of crash points contains as many kinds of them as possible."""

import random
from collections import Counter

from holdfast.testing.crash.trials import CrashPoint, choose_points, get_point_kind

NAMES = [
    *(f"before step {step} of crash-test" for step in range(1, 21)),
    *(f"after result pay-{call} of crash-test" for call in range(5)),
    "before creation of crash-test",
    "before creation of crash-test:f8a95f1f",
]
POINTS = [CrashPoint(name=name, marks=[name]) for name in NAMES]
KINDS = {
    "before step of crash-test",
    "after result of crash-test",
    "before creation of crash-test",
    "before creation of",
}


def _count_kinds(sample: int, seed: int) -> Counter[str]:
    return Counter(get_point_kind(point.name) for point in choose_points(POINTS, sample, random.Random(seed)))


def test_one_point_of_each_kind_is_chosen() -> None:
    for seed in range(20):
        chosen = choose_points(POINTS, "kinds", random.Random(seed))
        assert len(chosen) == len(KINDS)
        assert {get_point_kind(point.name) for point in chosen} == KINDS


def test_a_number_of_points_is_spread_over_the_kinds() -> None:
    for seed in range(20):
        assert len(_count_kinds(3, seed)) == 3
        assert set(_count_kinds(6, seed).values()) == {1, 2}
        assert sum(_count_kinds(100, seed).values()) == len(POINTS)


def test_a_seed_chooses_the_same_points_in_whatever_order_they_were_reached() -> None:
    orders = [random.sample(POINTS, len(POINTS)) for _ in range(10)]
    chosen = {tuple(point.name for point in choose_points(order, 6, random.Random(5))) for order in orders}
    assert len(chosen) == 1


def test_without_a_sample_every_point_is_chosen() -> None:
    assert choose_points(POINTS, None, random.Random(0)) == POINTS
