"""A mutation score: change the code in one place, and see whether a test fails.

    python tools/mutants.py                          20 mutants of each package
    python tools/mutants.py --count 50 web fanout    50 mutants of each of these
    python tools/mutants.py --seed 7 --list stores   print the sample and run nothing

A sample depends only on the code and the seed. The tests run in a copy of the work tree, with `-x`: those of the
mutant's own folder first. A mutant that makes them hang is caught. A survivor whose change no user could observe is
listed in `tools/equivalent_mutants.txt`, as this program prints it after its line number.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/holdfast")
EQUIVALENT = ROOT / "tools/equivalent_mutants.txt"
#: The least score of each package, in percent.
GOAL = 95

#: By package: the tests that have to notice its mutants. Browsers, npm and PostgreSQL are left out: they take minutes.
TESTS = {
    "core": ("tests/core", "tests/app", "tests/runtime"),
    "checkpoint": ("tests/checkpoint", "tests/runtime", "tests/core/execution", "tests/stores/test_contract.py"),
    "runtime": ("tests/runtime", "tests/app", "tests/core/execution"),
    "stores": ("tests/stores", "tests/runtime", "tests/app"),
    "fanout": ("tests/fanout", "tests/cli/test_compare.py"),
    "batteries": ("tests/batteries",),
    "adapters": ("tests/adapters",),
    "web": ("tests/web", "tests/fanout/test_http.py"),
}
#: Modules that the chosen tests do not reach.
_SKIPPED = ("stores/postgres/", "web/ui/", "web/protocols/")
_PYTEST = ("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "--timeout", "60")
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
    for node, new in _walk(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(path, node.lineno, start, end, source[start:end].decode(), new)


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
    paths = sorted(path.relative_to(root) for path in (root / PACKAGE / package).rglob("*.py"))
    chosen = [path for path in paths if not path.relative_to(PACKAGE).as_posix().startswith(_SKIPPED)]
    found = [mutant for path in chosen for mutant in find_mutants(path, root)]
    return random.Random(f"{seed} {package}").sample(found, min(count, len(found)))  # noqa: S311 - no secret


def list_tests(package: str, path: Path | None = None) -> list[str]:
    """Return the tests of a package, those of the folder of `path` first."""
    tests = list(TESTS[package])
    if path is not None:
        own = Path("tests") / path.relative_to(PACKAGE).parent
        if own.as_posix() not in tests and (ROOT / own).is_dir():
            tests.insert(0, own.as_posix())
    return tests


class Runner:
    """Runs tests in a copy of the work tree."""

    def __init__(self, folder: Path, processes: int) -> None:
        self._folder, self._processes = folder, processes
        for name in _COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)

    def passes(self, tests: Sequence[str], timeout_s: float) -> bool:
        """Whether all tests pass within the timeout."""
        command = [sys.executable, *_PYTEST, "-n", str(self._processes), *_DESELECTED, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src")}
        process = subprocess.Popen(
            command, cwd=self._folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def is_caught(self, mutant: Mutant, tests: Sequence[str], timeout_s: float) -> bool:
        """Whether the tests notice the mutant. The copy is restored."""
        original = (self._folder / mutant.path).read_bytes()
        mutant.apply(self._folder)
        try:
            return not self.passes(tests, timeout_s)
        finally:
            (self._folder / mutant.path).write_bytes(original)


def measure(package: str, mutants: Sequence[Mutant], runner: Runner, equivalent: frozenset[str]) -> float:
    """Print the survivors and the score of a package, and return the score in percent."""
    began = time.monotonic()
    if not runner.passes(list_tests(package), 3600):
        raise SystemExit(f"the tests of {package} fail without a mutant: run {' '.join(list_tests(package))}")
    timeout_s = 60 + 3 * (time.monotonic() - began)
    counted = [mutant for mutant in mutants if str(mutant) not in equivalent]
    caught = 0
    for mutant in counted:
        if runner.is_caught(mutant, list_tests(package, mutant.path), timeout_s):
            caught += 1
        else:
            print(f"  survived, line {mutant.line}: {mutant}", flush=True)
    score = 100 * caught / len(counted) if counted else 100.0
    print(f"{package:<12} {caught:>4} of {len(counted):>4}  {score:.0f}%", flush=True)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how many mutants of the code its tests notice.")
    parser.add_argument("packages", nargs="*", choices=[*TESTS, []], metavar="PACKAGE", help=", ".join(TESTS))
    parser.add_argument("--count", type=int, default=20, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="pytest workers")
    parser.add_argument("--list", action="store_true", help="print the sample and run nothing")
    given = parser.parse_args()
    samples = {package: sample(package, given.count, given.seed) for package in given.packages or TESTS}
    if given.list:
        print("\n".join(f"line {mutant.line}: {mutant}" for mutants in samples.values() for mutant in mutants))
        return 0
    known = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), given.processes)
        scores = [measure(package, mutants, runner, frozenset(known)) for package, mutants in samples.items()]
    return 0 if min(scores) >= GOAL else 1


def _shorten(text: str) -> str:
    return " ".join(text.split())[:120]


if __name__ == "__main__":
    sys.exit(main())
