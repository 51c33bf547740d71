"""The mutation runner finds places to change, changes one, and restores it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import mutants
from tools.covering_tests import PROCESS

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
    recorded = {
        "a.py::test_slow": (2.0, ["point.py::Point.move.<locals>.inner"]),
        "a.py::test_other": (0.1, ["point.py::Point.moved"]),
        "b.py::test_fast[1]": (1.0, ["point.py::Point.move"]),
        "c.py::test_process": (0.5, [PROCESS]),
    }
    records = mutants.Records(recorded, max_seconds=1.5)
    within, *_ = mutants.find_mutants(module, tmp_path)
    assert within.function == "Point.move"
    assert records.find_covering(within) == ["b.py::test_fast[1]", "a.py::test_slow"]
    outside = within._replace(function="")
    assert records.find_covering(outside) == ["a.py::test_other", "b.py::test_fast[1]", "a.py::test_slow"]
    assert records.take_first(records.find_covering(outside)) == ["a.py::test_other", "b.py::test_fast[1]"]
    assert records.take_first(["a.py::test_slow"]) == ["a.py::test_slow"], "at least one"
    fewer = mutants.Records(recorded, without=["b.py::test_fast", "c.py"])
    assert (fewer.find_covering(within), fewer.processes) == (["a.py::test_slow"], [])
    assert fewer.seconds.keys() == recorded.keys(), "they are known: they do not run as new ones"
    imported = within._replace(function="only_when_imported")
    assert (records.find_entering(imported), len(records.find_covering(imported))) == (set(), 3)


def test_a_sample_of_a_part_or_of_one_module_has_the_tests_of_its_package(module: Path, tmp_path: Path) -> None:
    assert len(mutants.sample("web/point", 100, 1, tmp_path)) == 9
    assert mutants.list_tests("web/point") == mutants.list_tests("web")


def test_every_path_of_tests_exists() -> None:
    assert [path for paths in mutants.TESTS.values() for path in paths if not (mutants.ROOT / path).exists()] == []


def test_mypy_refuses_a_mutant_and_the_file_is_restored(tmp_path: Path) -> None:
    path = mutants.PACKAGE / "sums.py"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("def add(a: int) -> int:\n    return a + 1\n")
    checker = mutants.TypeChecker(tmp_path)
    try:
        refused = {mutant.new: checker.refuses(mutant) for mutant in mutants.find_mutants(path, tmp_path)}
    finally:
        checker.stop()
    assert refused == {"return None": True, "2": False}
    assert (tmp_path / path).read_text() == "def add(a: int) -> int:\n    return a + 1\n"


def _index(offset: int) -> int:
    return len(SOURCE.encode()[:offset].decode())


COMMAND = [sys.executable, "-m", "pytest", "-p", "tools.covering_tests", "-c", os.devnull, "--rootdir", ".", "."]


def test_a_test_that_uses_another_process_is_recorded_as_such(tmp_path: Path) -> None:
    (tmp_path / "test_uses.py").write_text(
        "import socket, subprocess, sys\n\n"
        "def test_none(): pass\n"
        "def test_start(): subprocess.run([sys.executable, '-c', ''])\n"
        "def test_connect():\n"
        "    with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()):\n"
        "        pass\n"
    )
    record = tmp_path / "record.json"
    environment = {"PYTHONPATH": str(mutants.ROOT), "COVERING_RECORD": str(record)}
    options = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(COMMAND, cwd=tmp_path, env=os.environ | environment | options, check=True)
    uses = {
        name.rpartition("_")[2]: PROCESS in entered for name, (_, entered) in json.loads(record.read_text()).items()
    }
    assert uses == {"none": False, "start": True, "connect": True}


def test_the_tests_of_each_mutant_run_in_a_fork_and_the_file_is_restored(tmp_path: Path) -> None:
    (tmp_path / "src/holdfast").mkdir(parents=True)
    (tmp_path / "src/holdfast/__init__.py").touch()
    module = tmp_path / "src/holdfast/sums.py"
    source = "class Sum:\n    def add(self, a, b):\n        return a + b if a < 9 else 9\n"
    module.write_text(source)
    (tmp_path / "test_sums.py").write_text(
        "import os\nfrom holdfast.sums import Sum\n\n"
        "def test_sum(): assert Sum().add(2, 2) == 4\n"
        "def test_end(): Sum().add(1, 1) == 2 or os._exit(3)\n"
    )
    reading, writing = os.pipe()
    changes: list[dict[str, object]] = []
    work = {
        "known": {"test_sums.py::test_sum": 1.0, "test_sums.py::test_end": 1.0},
        "results": writing,
        "mutants": changes,
    }
    for old, new, test in [("a < 9", "a > 9", "sum"), ("9 else", "8 else", "sum"), ("a < 9", "a > 9", "end")]:
        start = source.index(old)
        changes.append({
            "path": "src/holdfast/sums.py", "start": start, "end": start + len(old), "new": new, "function": "Sum.add",
            "number": len(changes) + 1, "run": [f"test_sums.py::test_{test}"],
        })  # fmt: skip
    (tmp_path / "work.json").write_text(json.dumps(work))
    environment = {
        "PYTHONPATH": f"{tmp_path / 'src'}:{mutants.ROOT}",
        "COVERING_MUTANTS": str(tmp_path / "work.json"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    subprocess.run(COMMAND, cwd=tmp_path, env=os.environ | environment, pass_fds=[writing], check=True)
    os.close(writing)
    with os.fdopen(reading) as results:
        found = [json.loads(line) for line in results]
    assert found == [[0, "test_sums.py::test_sum"], [1, None], [2, "the end of the process"]]
    assert module.read_text() == source
