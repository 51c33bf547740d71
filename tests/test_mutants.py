"""The mutation runner finds places to change, changes one, and restores it."""

from pathlib import Path

import pytest
from tools import mutants

SOURCE = '''"""A module."""

class Point(Struct, frozen=True):
    def move(self, é: int = 1) -> int:
        """Move."""
        if é < 2 and self.free:
            self.notify()
            log.info("moved")
            raise ValueError(f"{é == 1}")
        return é if not self.free else None
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = mutants.PACKAGE / "web/point.py"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(SOURCE)
    return path


def test_each_mutant_changes_one_place_and_the_result_can_be_parsed(module: Path, tmp_path: Path) -> None:
    found = list(mutants.find_mutants(module, tmp_path))
    assert [(mutant.line, mutant.old, mutant.new) for mutant in found] == [
        (4, "1", "2"),
        (6, "é < 2 and self.free", "(é < 2 or self.free)"),
        (6, "é < 2", "(é <= 2)"),
        (6, "2", "3"),
        (7, "self.notify()", "pass"),
        (9, 'raise ValueError(f"{é == 1}")', "pass"),
        (6, "é < 2 and self.free", "(not (é < 2 and self.free))"),
        (10, "return é if not self.free else None", "return None"),
        (10, "not self.free", "(not (not self.free))"),
    ]
    for mutant in found:
        mutant.apply(tmp_path)
        changed = (tmp_path / module).read_text()
        compile(changed, str(module), "exec")
        assert changed == SOURCE[: _index(mutant.start)] + mutant.new + SOURCE[_index(mutant.end) :]
        (tmp_path / module).write_text(SOURCE)


def test_a_sample_depends_on_the_seed_only(module: Path, tmp_path: Path) -> None:
    samples = [mutants.sample("web", 4, seed, tmp_path) for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert len(mutants.sample("web", 100, 1, tmp_path)) == 9


def test_a_mutant_is_run_against_the_tests_that_enter_its_function_the_fastest_first(
    module: Path, tmp_path: Path
) -> None:
    records = mutants.Records({
        "a.py::test_slow": (2.0, ["point.py::Point.move.<locals>.inner"]),
        "a.py::test_other": (0.1, ["point.py::Point.moved"]),
        "b.py::test_fast": (1.0, ["point.py::Point.move"]),
        "c.py::test_process": (0.5, []),
    })  # fmt: skip
    within, *_ = mutants.find_mutants(module, tmp_path)
    assert within.function == "Point.move"
    assert records.find_covering(within) == ["b.py::test_fast", "a.py::test_slow"]
    outside = within._replace(function="")
    assert records.find_covering(outside) == ["a.py::test_other", "b.py::test_fast", "a.py::test_slow"]


def test_a_sample_of_a_part_or_of_one_module_has_the_tests_of_its_package(module: Path, tmp_path: Path) -> None:
    assert len(mutants.sample("web/point", 100, 1, tmp_path)) == 9
    assert mutants.list_tests("web/point") == mutants.list_tests("web")


def test_every_path_of_tests_exists() -> None:
    assert [path for paths in mutants.TESTS.values() for path in paths if not (mutants.ROOT / path).exists()] == []


def _index(offset: int) -> int:
    return len(SOURCE.encode()[:offset].decode())
