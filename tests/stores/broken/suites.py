"""The suite for each broken store: `pytest tests/stores/broken/suites.py` shows how they fail.

Not collected with the other tests: `test_suite_detects_broken_stores.py` runs it.
"""

import inspect
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from tests.stores.broken import (
    claims,
    drafts,
    durability,
    journal,
    lifecycle,
    limits,
    listing,
    mail,
    pages,
    release,
    waiting,
)

from holdfast.testing.store_check.scratch_stores import flip_bit
from holdfast.testing.store_suite import DurableRunStoreSuite, RunStoreSuite

PARTS = (journal, claims, release, listing, limits, pages, mail, waiting, drafts, lifecycle, durability)


class Suite(RunStoreSuite, DurableRunStoreSuite):
    timeout = timedelta(seconds=3)  # short, because the broken stores often run into it
    sequence_seconds = 30  # long, because a failure ends the sequences
    heartbeat_interval = timedelta(milliseconds=200)

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "runs.snapshot")

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        flip_bit(Path(location), body)


def broken_stores(part: ModuleType) -> dict[str, type]:
    return {
        name: store
        for name, store in inspect.getmembers(part, inspect.isclass)
        if store.__module__ == part.__name__ and "red" in vars(store)
    }


#: For each broken store the tests that have to fail.
RED: dict[str, tuple[str, ...]] = {}


def without_case(test: str) -> str:
    return test.partition("[")[0]


def make_suite(factory: str, red: tuple[str, ...]) -> type[Suite]:
    """The suite with only the tests that have to fail. To collect all of them for each store takes half a minute."""
    wanted = {without_case(test) for test in red}
    others = {name: None for name in dir(Suite) if name.startswith("test_") and name not in wanted}
    return type(f"Test{factory.rpartition(':')[2]}", (Suite,), {"factory": factory, **others})


for _part in PARTS:
    for _name, _store in broken_stores(_part).items():
        RED[_name] = vars(_store)["red"]
        globals()[f"Test{_name}"] = make_suite(f"{_part.__name__}:{_name}", RED[_name])
