"""A mutation score: change the code in one place, and see whether a test fails.

    python -m tools.mutants                          20 mutants of each package
    python -m tools.mutants --count 50 web fanout    50 mutants of each of these
    python -m tools.mutants --count 25 core/workflow part of a package
    python -m tools.mutants --seed 7 --list stores   print the sample and run nothing

A sample depends only on the code and the seed. The tests run in a copy of the work tree, with `-x`: first those that
enter the changed function, the fastest first, then the others: their processes may enter it. `build/mutants` remembers
which test enters which function; `--record` observes all tests again. A mutant that makes the tests hang is caught. A
survivor whose change no user could observe is listed in `tools/equivalent_mutants.txt`, as this program prints it after
its line number.
"""

import argparse
import ast
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

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/holdfast")
EQUIVALENT = ROOT / "tools/equivalent_mutants.txt"
RECORDS = ROOT / "build/mutants"
#: The least score of each package, in percent.
GOAL = 95

#: By package: the tests that have to notice its mutants. Browsers, npm and PostgreSQL are left out: they take minutes.
TESTS = {
    "core": ("tests/core", "tests/app", "tests/runtime"),
    "checkpoint": ("tests/checkpoint", "tests/runtime", "tests/core", "tests/stores"),
    "runtime": ("tests/runtime", "tests/app", "tests/core"),
    "stores": ("tests/stores", "tests/runtime", "tests/app"),
    "fanout": ("tests/fanout", "tests/cli/test_compare.py"),
    "batteries": ("tests/batteries",),
    "adapters": ("tests/adapters", "tests/runtime/reading"),
    "web": ("tests/web", "tests/fanout/test_http.py"),
}
#: Modules that the chosen tests do not reach.
_SKIPPED = ("stores/postgres/", "web/ui/", "web/protocols/")
_PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "--no-header", "--tb", "no", "-p", "no:cacheprovider",
           "-p", "tools.covering_tests")  # fmt: skip
_DESELECTED = ("-k", "not postgres and not front_ends", "--ignore", "tests/web/ui", "--ignore", "tests/web/protocols")
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

    def __init__(self, recorded: dict[str, tuple[float, list[str]]]) -> None:
        self.seconds = {name: seconds for name, (seconds, _) in recorded.items()}
        self._functions = {name: frozenset(functions) for name, (_, functions) in recorded.items()}

    def find_covering(self, mutant: Mutant) -> list[str]:
        """Return the tests that enter the function of the mutant, or any of its module. The fastest come first."""
        start = f"{mutant.path.name}::{mutant.function}"

        def enters(functions: frozenset[str]) -> bool:
            return any(each == start or each.startswith(f"{start}.") for each in functions)

        found = {name for name, functions in self._functions.items() if mutant.function and enters(functions)}
        if not found:
            start = start.partition("::")[0] + "::"
            found = {name for name, all_ in self._functions.items() if any(each.startswith(start) for each in all_)}
        return sorted(found, key=self.seconds.__getitem__)


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

    def find_catching(self, mutant: Mutant, records: Records, tests: Sequence[str]) -> str | None:
        """Return a test that notices the mutant, or None. The copy is restored."""
        original = (self._folder / mutant.path).read_bytes()
        mutant.apply(self._folder)
        covering = records.find_covering(mutant)
        others = records.seconds.keys() - set(covering)
        try:
            caught_by = self._run_only(covering, records.seconds, tests)
            return caught_by or self._run_only(sorted(others), records.seconds, tests)
        finally:
            (self._folder / mutant.path).write_bytes(original)

    def _run_only(self, chosen: list[str], known: dict[str, float], tests: Sequence[str]) -> str | None:
        """Run the chosen tests, and those that are not known yet, and return one that fails."""
        selection = self._folder / "selection.json"
        selection.write_text(json.dumps({"run": chosen, "known": known}))
        new = {path.relative_to(ROOT).as_posix() for test in tests for path in (ROOT / test).rglob("test_*.py")}
        files = {_file(name) for name in chosen} | new - {_file(name) for name in known}
        present = sorted(name for name in files if (self._folder / name).exists())
        return self._run(present, 1800, COVERING_TESTS=str(selection)) if present else None

    def _run(self, tests: Sequence[str], timeout_s: float, **environment: str) -> str | None:
        """Run tests, and return one that fails."""
        command = [sys.executable, *_PYTEST, *_DESELECTED, *tests]
        process = subprocess.Popen(
            command, cwd=self._folder, env={**os.environ, "PYTHONPATH": str(self._folder / "src"), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True,
        )  # fmt: skip
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


def measure(
    package: str, mutants: Sequence[Mutant], runner: Runner, equivalent: frozenset[str], verbose: bool
) -> float:
    """Print the survivors and the score of a package, and return the score in percent."""
    tests = list_tests(package)
    recorded: dict[str, tuple[float, list[str]]] = {}
    for each in tests:
        recorded |= runner.record(each)
    records = Records(recorded)
    counted = [mutant for mutant in mutants if str(mutant) not in equivalent]
    caught = 0
    for mutant in counted:
        test = runner.find_catching(mutant, records, tests)
        caught += test is not None
        if test is None:
            print(f"  survived, line {mutant.line}: {mutant}", flush=True)
        elif verbose:
            print(f"  caught, line {mutant.line}: {mutant}  [{test}]", flush=True)
    score = 100 * caught / len(counted) if counted else 100.0
    alike = len(mutants) - len(counted)
    print(f"{package:<14} {caught:>4} of {len(counted):>4}  {score:.0f}%  ({alike} equivalent)", flush=True)
    return score


def list_tests(package: str) -> tuple[str, ...]:
    """Return the tests of a package, or of the package that contains it."""
    return TESTS[package.partition("/")[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how many mutants of the code its tests notice.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(TESTS))
    parser.add_argument("--count", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="observe again which test enters which function")
    parser.add_argument("--verbose", action="store_true", help="print caught mutants too, each with a test that fails")
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
        runner = Runner(Path(folder))
        scores = [
            measure(package, mutants, runner, frozenset(known), given.verbose) for package, mutants in samples.items()
        ]
    return 0 if min(scores) >= GOAL else 1


def _file(test: str) -> str:
    return test.partition("::")[0]


def _shorten(text: str) -> str:
    return " ".join(text.split())[:120]


if __name__ == "__main__":
    sys.exit(main())
