"""A mutation score: change the code in one place, and see whether a test fails.

    python -m tools.mutants                          20 mutants of each package
    python -m tools.mutants --count 50 web fanout    50 mutants of each of these
    python -m tools.mutants --count 25 core/workflow part of a package
    python -m tools.mutants --seed 7 --list stores   print the sample and run nothing
    python -m tools.mutants runtime --without tests/chaos/test_fleet.py    say what these tests alone catch

A sample depends only on the code and the seed. The tests run in a copy of the work tree until one fails: first those
that enter the changed function, the fastest first and for a minute in all, in a fork of one process of pytest; then
the rest of them, and those that start processes, which may enter it. `--quick` leaves both out. mypy, which is a part
of `make test`, checks each mutant before. `build/mutants`
remembers which test enters which function; `--record` observes all tests again. A mutant that makes the tests hang, or
ends their process, is caught. `--without` leaves tests out: files, or ids without parameters. Those that survive then
meet these tests alone, also on PostgreSQL, and what only they catch is printed. A survivor whose change no user could
observe is listed in `tools/equivalent_mutants.txt`, as this program prints it after its line number.
"""

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.covering_tests import PROCESS

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/holdfast")
EQUIVALENT = ROOT / "tools/equivalent_mutants.txt"
RECORDS = ROOT / "build/mutants"
#: The least score of each package, in percent.
GOAL = 95

#: How long the tests of one mutant take, as it was recorded. The score is that of the tests that run within it.
MAX_SECONDS = 60

#: By package: the tests that have to notice its mutants. Browsers, npm and PostgreSQL are left out: they take minutes.
TESTS = {
    "core": ("tests/core", "tests/app", "tests/runtime"),
    "checkpoint": ("tests/checkpoint", "tests/runtime", "tests/core", "tests/stores"),
    "runtime": ("tests/runtime", "tests/app", "tests/core", "tests/web", "tests/cli/test_top.py"),
    "stores": ("tests/stores", "tests/runtime", "tests/app"),
    "fanout": ("tests/fanout", "tests/cli/test_compare.py"),
    "batteries": ("tests/batteries",),
    "adapters": ("tests/adapters", "tests/runtime/reading", "tests/runtime/operations/test_messages.py"),
    "web": ("tests/web", "tests/fanout/test_http.py"),
}
_PUBLIC_API = "tests/public_api"
#: Modules that the chosen tests do not reach.
_SKIPPED = ("stores/postgres/", "web/ui/", "web/protocols/")
_PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "--no-header", "--tb", "no", "-p", "no:cacheprovider",
           "-p", "tools.covering_tests")  # fmt: skip
_DESELECTED = ("-k", "not postgres and not front_ends", "--ignore", "tests/web/ui", "--ignore", "tests/web/protocols")
_IGNORED = ("tests/web/ui/", "tests/web/protocols/")
_COPIED = (
    "src",
    "tests",
    "tools",
    "docs",
    "examples",
    "bench",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)

_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file."""

    path: Path
    line: int
    #: The text that is replaced, from and to these bytes of the file.
    start: int
    end: int
    old: str
    new: str
    #: The qualified name of the function that contains it; empty outside of functions.
    function: str

    def __str__(self) -> str:
        return f"{self.path}: {_shorten(self.old)} => {_shorten(self.new)}"

    def apply(self, root: Path) -> None:
        source = (root / self.path).read_bytes()
        (root / self.path).write_bytes(source[: self.start] + self.new.encode() + source[self.end :])


def find_mutants(path: Path, root: Path = ROOT) -> Iterator[Mutant]:
    """Return every mutant of a module, in the order of the source."""
    source = (root / path).read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    tree = ast.parse(source)
    functions = dict(_name_lines(tree, ""))
    for node, new in _walk(tree):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(path, node.lineno, start, end, source[start:end].decode(), new, functions.get(node.lineno, ""))


def _name_lines(tree: ast.AST, prefix: str) -> Iterator[tuple[int, str]]:
    """Return each line within a function, with the qualified name of the outermost function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield from ((line, prefix + node.name) for line in range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.ClassDef):
            yield from _name_lines(node, f"{prefix}{node.name}.")
        else:
            yield from _name_lines(node, prefix)


def _walk(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Return the nodes that are replaced, each with its new text."""
    for name, value in ast.iter_fields(node):
        # The places within an f-string are not exact, and no annotation is executed.
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.ClassDef) and name == "keywords":  # such as frozen=True
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr | ast.stmt):
                for new in _replace(child):
                    yield child, new
            if isinstance(child, ast.AST):
                yield from _walk(child)
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.comprehension):
        tests = node.ifs if isinstance(node, ast.comprehension) else [node.test]
        for test in tests:
            if not isinstance(test, ast.Compare | ast.Constant):  # those are replaced themselves
                yield test, f"(not ({ast.unparse(test)}))"


def _replace(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _OPPOSITES:
            changed = ast.Compare(node.left, [_OPPOSITES[type(operator)]()], node.comparators)
            yield f"({ast.unparse(changed)})"
        case ast.BoolOp():
            changed_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(changed_op, node.values))})"
        case ast.Constant(value=bool()):
            yield str(not node.value)
        case ast.Constant(value=int() as number):
            yield str(number + 1)
        case ast.Return(value=ast.expr()) if ast.unparse(node) != "return None":
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) if not ast.unparse(node).startswith("log."):
            yield "pass"
        case ast.Raise():
            yield "pass"


def sample(package: str, count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return a sample of the mutants of a package."""
    whole = root / PACKAGE / package
    files = [whole.with_suffix(".py")] if whole.with_suffix(".py").is_file() else whole.rglob("*.py")
    paths = sorted(path.relative_to(root) for path in files)
    chosen = [path for path in paths if not path.relative_to(PACKAGE).as_posix().startswith(_SKIPPED)]
    found = [mutant for path in chosen for mutant in find_mutants(path, root)]
    return random.Random(f"{seed} {package}").sample(found, min(count, len(found)))  # noqa: S311 - no secret


class Records:
    """Which tests enter which functions, and how long they take."""

    def __init__(
        self,
        recorded: dict[str, tuple[float, list[str]]],
        max_seconds: float = MAX_SECONDS,
        without: Sequence[str] = (),
    ) -> None:
        self._max_seconds = max_seconds
        self.seconds = {name: seconds for name, (seconds, _) in recorded.items()}
        self._functions = {
            name: frozenset(functions)
            for name, (_, functions) in recorded.items()
            if not {_file(name), name.partition("[")[0]} & set(without)
        }
        #: The tests that start a process, the fastest first. The functions that it enters are not recorded.
        self.processes = sorted(
            (name for name, functions in self._functions.items() if PROCESS in functions), key=self.seconds.__getitem__
        )

    def find_entering(self, mutant: Mutant) -> set[str]:
        """Return the tests that enter the function of the mutant. None enters one that only an import calls."""
        start = f"{mutant.path.name}::{mutant.function}"

        def enters(functions: frozenset[str]) -> bool:
            return any(each == start or each.startswith(f"{start}.") for each in functions)

        return {name for name, functions in self._functions.items() if mutant.function and enters(functions)}

    def find_covering(self, mutant: Mutant) -> list[str]:
        """Return the tests that enter the function of the mutant, or any of its module.

        Those of the file and of the folder that mirror the module's come first, then the fastest.
        """
        found = self.find_entering(mutant)
        if not found:
            start = f"{mutant.path.name}::"
            found = {name for name, all_ in self._functions.items() if any(each.startswith(start) for each in all_)}
        folder = f"tests/{mutant.path.relative_to(PACKAGE).parent.as_posix()}/"
        file = f"{folder}test_{mutant.path.stem}.py::"
        return sorted(
            found, key=lambda name: (not name.startswith(file), not name.startswith(folder), self.seconds[name])
        )

    def take_first(self, tests: list[str]) -> list[str]:
        """Return the first of these tests, for `max_seconds` in all."""
        total = itertools.accumulate(self.seconds[name] for name in tests)
        within = [name for name, seconds in zip(tests, total, strict=True) if seconds <= self._max_seconds]
        return within or tests[:1]

    @property
    def describing(self) -> list[str]:
        """The tests that compare the public names, with the defaults of arguments and fields."""
        return [name for name in self._functions if name.startswith(_PUBLIC_API)]


class TypeChecker:
    """mypy in a copy of the work tree, as a daemon that checks only what has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The daemon does not get along with modules that the configuration of the project skips.
        (folder / "mypy.ini").write_text(
            "[mypy]\nstrict = True\nmypy_path = src\nwarn_unreachable = True\nignore_missing_imports = True\n"
        )
        if self._run("run", "--", "--config-file", "mypy.ini", str(PACKAGE)) != 0:
            raise SystemExit("mypy finds errors without a mutant")

    def refuses(self, mutant: Mutant) -> bool:
        """Whether mypy finds an error in the mutant. The copy is restored."""
        path = self._folder / mutant.path
        original = path.read_bytes()
        mutant.apply(self._folder)
        try:
            return self._run("recheck") != 0
        finally:
            path.write_bytes(original)  # the next check sees this too

    def stop(self) -> None:
        self._run("kill")

    def _run(self, *arguments: str) -> int:
        command = [sys.executable, "-m", "mypy.dmypy", "--status-file", "dmypy.json", *arguments]
        return subprocess.run(command, cwd=self._folder, stdout=subprocess.DEVNULL, check=False).returncode


class Runner:
    """Runs tests in a copy of the work tree."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in _COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)

    def record(self, tests: str) -> dict[str, tuple[float, list[str]]]:
        """Run tests without a mutant, unless that was done before, and return what they enter."""
        path = RECORDS / f"{tests.replace('/', '-')}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            failed = self._run([tests], 3600, COVERING_RECORD=str(path))
            if failed is not None:
                path.unlink(missing_ok=True)
                raise SystemExit(f"{failed} fails without a mutant")
        recorded: dict[str, tuple[float, list[str]]] = json.loads(path.read_text())
        return recorded

    def find_catching(
        self, mutants: Sequence[Mutant], records: Records, tests: Sequence[str], quick: bool
    ) -> Iterator[tuple[Mutant, str | None]]:
        """Return each mutant with a test that notices it, or None."""
        all_covering = [records.find_covering(mutant) for mutant in mutants]
        covering = [records.take_first(found) for found in all_covering]
        in_functions = [index for index, mutant in enumerate(mutants) if records.find_entering(mutant)]
        rest = [index for index in range(len(mutants)) if index not in in_functions]
        survivors = []
        for index, caught_by in self._run_forks(mutants, in_functions, covering, records.seconds, tests):
            if caught_by == "fresh":
                rest.append(index)
            elif caught_by is None and not quick:
                survivors.append(index)
            else:
                yield mutants[index], caught_by
        # Not meanwhile: all processes of pytest share one folder.
        for index in rest:
            chosen = [*records.describing, *covering[index]]
            caught_by = self._run_mutant(mutants[index], chosen, records.seconds, tests)
            if caught_by is None and not quick:
                survivors.append(index)
            else:
                yield mutants[index], caught_by
        others = [
            [name for name in dict.fromkeys([*found, *records.processes]) if name not in set(first)]
            for found, first in zip(all_covering, covering, strict=True)
        ]
        in_forks = [index for index in survivors if index not in rest]
        for index, caught_by in self._run_forks(mutants, in_forks, others, records.seconds, tests):
            yield mutants[index], caught_by
        for index in survivors:
            if index in rest:
                yield mutants[index], self._run_mutant(mutants[index], others[index], records.seconds, tests)

    def _run_forks(
        self, mutants: Sequence[Mutant], chosen: list[int], covering: list[list[str]], known: dict[str, float],
        tests: Sequence[str],
    ) -> Iterator[tuple[int, str | None]]:  # fmt: skip
        """Run the tests that cover each chosen mutant, in forks of one process of pytest."""
        if not chosen:
            return
        reading, writing = os.pipe()
        listed = [
            {"path": str(mutants[index].path), "start": mutants[index].start, "end": mutants[index].end,
             "new": mutants[index].new, "function": mutants[index].function, "number": index + 1,
             "run": covering[index]}
            for index in chosen
        ]  # fmt: skip
        work = self._folder / "mutants.json"
        work.write_text(json.dumps({"known": known, "results": writing, "mutants": listed}))
        files = self._list_files({name for index in chosen for name in covering[index]}, known, tests)
        process = self._start([*_DESELECTED, *files], [writing], COVERING_MUTANTS=str(work))
        os.close(writing)
        seen = 0
        try:
            with os.fdopen(reading) as lines:
                while seen < len(chosen) and (line := lines.readline()):
                    seen += 1
                    position, caught_by = json.loads(line)
                    yield chosen[position], caught_by
        finally:
            process.terminate()
            process.wait()
        if seen < len(chosen):
            raise SystemExit(f"exit code {process.returncode} of pytest")

    def _run_mutant(
        self, mutant: Mutant, chosen: list[str], known: dict[str, float], tests: Sequence[str]
    ) -> str | None:
        """Run the chosen tests in a new process of pytest, and return one that fails."""
        with self._changed(mutant):
            return self._run_only(chosen, known, tests)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        """The copy contains the mutant, and is restored."""
        path = self._folder / mutant.path
        original = path.read_bytes()
        mutant.apply(self._folder)
        try:
            yield
        finally:
            path.write_bytes(original)

    def find_catching_only(self, tests: Sequence[str], mutants: Sequence[Mutant]) -> Iterator[tuple[Mutant, str]]:
        """Return each mutant that these tests catch, with one that fails. PostgreSQL is not left out."""
        failed = self._run(tests, 3600, deselected=()) if mutants else None
        if failed is not None:
            raise SystemExit(f"{failed} fails without a mutant")
        for mutant in mutants:
            with self._changed(mutant):
                failed = self._run(tests, 1800, deselected=())
            if failed is not None:
                yield mutant, failed

    def _run_only(self, chosen: list[str], known: dict[str, float], tests: Sequence[str]) -> str | None:
        """Run the chosen tests, and those that are not known yet, and return one that fails."""
        selection = self._folder / "selection.json"
        selection.write_text(json.dumps({"run": chosen, "known": known}))
        present = self._list_files(set(chosen), known, tests)
        return self._run(present, 1800, COVERING_TESTS=str(selection)) if present else None

    def _list_files(self, chosen: set[str], known: dict[str, float], tests: Sequence[str]) -> list[str]:
        """Return the files of the chosen tests, and those that are not known yet."""
        new = {path.relative_to(ROOT).as_posix() for test in tests for path in _list_modules(ROOT / test)}
        files = {_file(name) for name in chosen} | new - {_file(name) for name in known}
        return sorted(name for name in files if (self._folder / name).exists())

    def _run(
        self, tests: Sequence[str], timeout_s: float, deselected: Sequence[str] = _DESELECTED, **environment: str
    ) -> str | None:
        """Run tests, and return one that fails."""
        process = self._start([*deselected, *tests], [], **environment)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "a timeout"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode in (0, 5):  # 5: no test was chosen
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return failed[1] if failed else f"exit code {process.returncode} of pytest"

    def _start(self, arguments: Sequence[str], inherited: Sequence[int], **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *_PYTEST, "--basetemp", str(self._folder / "tmp"), *arguments]
        return subprocess.Popen(
            command, cwd=self._folder, env={**os.environ, "PYTHONPATH": str(self._folder / "src"), **environment},
            stdout=subprocess.DEVNULL if inherited else subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=inherited, start_new_session=True, text=True,
        )  # fmt: skip


def measure(
    package: str,
    mutants: Sequence[Mutant],
    checker: TypeChecker,
    runner: Runner,
    equivalent: frozenset[str],
    given: argparse.Namespace,
) -> float:
    """Print the survivors and the score of a package, and return the score in percent."""
    tests = list_tests(package)
    recorded: dict[str, tuple[float, list[str]]] = {}
    for each in tests:
        recorded |= runner.record(each)
    records = Records(recorded, given.seconds, given.without)
    counted = [mutant for mutant in mutants if str(mutant) not in equivalent]
    refused = {mutant for mutant in counted if checker.refuses(mutant)}
    caught, survivors = len(refused), []
    executed = [mutant for mutant in counted if mutant not in refused]
    for mutant, test in runner.find_catching(executed, records, tests, given.quick):
        caught += test is not None
        if test is None:
            survivors.append(mutant)
            print(f"  survived, line {mutant.line}: {mutant}", flush=True)
        elif given.verbose:
            print(f"  caught, line {mutant.line}: {mutant}  [{test}]", flush=True)
    score = 100 * caught / len(counted) if counted else 100.0
    kinds = f"{len(mutants) - len(counted)} equivalent, {len(refused)} refused by mypy"
    print(f"{package:<14} {caught:>4} of {len(counted):>4}  {score:.0f}%  ({kinds})", flush=True)
    if given.without:
        lost = 0
        for mutant, test in runner.find_catching_only(given.without, survivors):
            lost += 1
            print(f"  lost, line {mutant.line}: {mutant}  [{test}]", flush=True)
        print(f"{package:<14} {lost} of {len(survivors)} survivors are caught by what is left out", flush=True)
    return score


def list_tests(package: str) -> tuple[str, ...]:
    """Return the tests of a package, or of the package that contains it."""
    return (*TESTS[package.partition("/")[0]], _PUBLIC_API)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how many mutants of the code its tests notice.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(TESTS))
    parser.add_argument("--count", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="observe again which test enters which function")
    parser.add_argument("--verbose", action="store_true", help="print caught mutants too, each with a test that fails")
    parser.add_argument(
        "--quick", action="store_true", help="leave out tests of which only a process may enter the code"
    )
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="of the tests that enter a changed function")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="TEST", help="leave tests out, and say what is lost"
    )
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    given = parser.parse_args()
    samples = {package: sample(package, given.count, given.seed) for package in given.packages or TESTS}
    if given.list:
        print("\n".join(f"line {mutant.line}: {mutant}" for mutants in samples.values() for mutant in mutants))
        return 0
    known = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    if given.record:
        shutil.rmtree(RECORDS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        runner, checker = Runner(Path(folder)), TypeChecker(Path(folder))
        try:
            scores = [
                measure(package, mutants, checker, runner, frozenset(known), given)
                for package, mutants in samples.items()
            ]
        finally:
            checker.stop()
    return 0 if min(scores) >= GOAL else 1


def _file(test: str) -> str:
    return test.partition("::")[0]


def _list_modules(path: Path) -> Iterator[Path]:
    """Return the modules of tests at a path, without those that are left out."""
    found = path.rglob("test_*.py") if path.is_dir() else iter([path])
    return (each for each in found if not each.relative_to(ROOT).as_posix().startswith(_IGNORED))


def _shorten(text: str) -> str:
    return " ".join(text.split())[:120]


if __name__ == "__main__":
    sys.exit(main())
