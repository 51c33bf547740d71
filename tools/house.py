"""Figures of the code base, and the caps that they may not exceed.

    python tools/house.py            print every figure beside its cap; exit 1 if one is above it
    python tools/house.py --rooms    print each package with its modules and what they are for

A figure may fall and may not grow. A change that lowers one lowers its cap in the same commit.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

#: Each figure may fall, not grow. One line per figure: a merge takes the lower one.
CAPS = {
    "modules": 440,
    "lines": 75_592,
    "modules that share a name": 0,
    "modules in one folder": 14,
    "class names used twice": 8,
    "protocols": 33,
    "names in holdfast": 32,
    "entries in docs/reference/api": 212,
    "functions over 60 lines": 6,
    "lambdas": 54,
    "parameters of App": 13,
    "parameters of the longest durable()": 8,
    "modules that import time": 5,
    "modules that import threading": 5,
    "modules that import random": 13,
    "modules that import secrets": 0,
}

#: Nine of ten functions have fewer lines.
FUNCTION_LINES = 20
#: The most lines of a file, and the files that are longer today: they may shrink, not grow.
FILE_LINES = 420
LONG_FILES = {
    "app.py": 461,
    "core/execution/calling/tool_calls.py": 426,
    "runtime/operations/run_client.py": 432,
}

#: Identifiers that the project gave up, one per line.
OLD_IDENTIFIERS = [
    "AdapterState",
    "AnnouncedCall",
    "AuditStore",
    "BUILD_FAILURES_KEY",
    "CLAIM_CHECK_TTL",
    "CheckpointAction",
    "CheckpointLocation",
    "CheckpointRun",
    "CheckpointerOwner",
    "DurableStoreSuite",
    "ExecutableCall",
    "ExecutionServices",
    "FanoutBusy",
    "FanoutCheckpoint",
    "FanoutMismatch",
    "FinishedFanout",
    "GuardedRecorder",
    "IN_DOUBT_KEY",
    "JobStore",
    "LimitsError",
    "LimitsUnavailable",
    "MemoryAudit",
    "MemoryDefinitions",
    "MemoryJobs",
    "MemoryLedger",
    "MemoryWindows",
    "ModelGate",
    "ModelLimits",
    "ModelPermit",
    "ModelRetries",
    "NOT_STARTED_KEY",
    "NotedEvent",
    "NullCheckpoints",
    "PICK_AGENT",
    "PROCESS_EXIT_KEY",
    "PendingFlush",
    "PendingIntent",
    "ProgressRecorder",
    "ProposedWrite",
    "ProviderLimits",
    "ProviderWait",
    "RETRY_KEY",
    "ReplyStream",
    "RequestedCall",
    "RunControl",
    "RunExecution",
    "RunLabels",
    "RunMeta",
    "RunRecorder",
    "RunSupervisor",
    "RunTelemetry",
    "RunWriter",
    "STEERING_KEY",
    "SharedStore",
    "StoreSuite",
    "StoredAttempt",
    "TablesAudit",
    "TablesDefinitions",
    "TablesJobs",
    "TablesLedger",
    "TablesWindows",
    "UPGRADES",
    "WAITS_KEY",
    "announce_calls",
    "await_uninterruptible",
    "begin_attempt",
    "has_listeners",
    "is_listed",
    "make_request_key",
    "model_gate",
    "present_status",
    "provider_limits",
    "read_begin",
    "read_checkpoint",
    "read_pick",
    "record_pick",
    "request_key",
    "run_labels",
    "save_now",
    "store_finished_run",
    "stored_meta",
]

#: Modules of these names play the same role wherever they stand.
SHARED_ROLES = {"__init__", "__main__", "errors", "application", "server"}
#: Packages whose parts are siblings: two modules of one name in different parts play the same role.
SIBLINGS = {"adapters", "batteries", "stores", "testing"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One module of holdfast: its path below the package and what its syntax tree has."""

    path: Path
    line_count: int
    #: The first line of the docstring.
    purpose: str
    nodes: list[ast.AST]

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))


class Figure(NamedTuple):
    """One measured figure, and where it comes from."""

    value: int
    details: str = ""


def read_modules(package: Path) -> list[Module]:
    """Read every module below `package`, sorted by path."""
    return [_read_module(path, package) for path in sorted(package.rglob("*.py"))]


def _read_module(path: Path, package: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    purpose = (ast.get_docstring(tree) or "").partition("\n")[0]
    return Module(path.relative_to(package), text.count("\n"), purpose, list(ast.walk(tree)))


def measure(modules: list[Module], reference: str) -> dict[str, Figure]:
    """Return every figure that has a cap, by its name. `reference` is the text of the API reference."""
    nodes = [node for module in modules for node in module.nodes]
    folders = Counter(str(module.path.parent) for module in modules)
    [(folder, most)] = folders.most_common(1)
    return {
        "modules": Figure(len(modules)),
        "lines": Figure(sum(module.line_count for module in modules)),
        "modules that share a name": _count_names(find_shared_names(modules)),
        "modules in one folder": Figure(most, folder),
        "class names used twice": _count_names(_find_shared_classes(nodes)),
        "protocols": Figure(sum(_is_protocol(node) for node in nodes)),
        "names in holdfast": Figure(_count_exports(modules)),
        "entries in docs/reference/api": Figure(len(re.findall(r"^::: ", reference, re.MULTILINE))),
        "functions over 60 lines": _count_names(_find_long_functions(modules)),
        "lambdas": Figure(sum(isinstance(node, ast.Lambda) for node in nodes)),
        "parameters of App": Figure(_count_app_parameters(modules)),
        "parameters of the longest durable()": Figure(_count_durable_parameters(modules)),
        **{f"modules that import {name}": _count_names(_find_importers(modules, name)) for name in _DIRECT_IMPORTS},
    }


#: A simulator replaces time, threads and randomness, so each has one home: `clock`, `concurrency`, `ids`.
_DIRECT_IMPORTS = ("time", "threading", "random", "secrets")


def _count_names(names: list[str]) -> Figure:
    return Figure(len(names), ", ".join(names))


def find_shared_names(modules: list[Module]) -> list[str]:
    """Modules whose file name another one has too, unless they play the same role in sibling packages."""
    by_name: dict[str, list[Path]] = defaultdict(list)
    for module in modules:
        if module.path.stem not in SHARED_ROLES:
            by_name[module.path.stem].append(module.path)
    shared = [paths for paths in by_name.values() if len(paths) > 1 and not _are_siblings(paths)]
    return sorted(str(path) for paths in shared for path in paths)


def _are_siblings(paths: list[Path]) -> bool:
    packages = {path.parts[0] for path in paths}
    return len(packages) == 1 and packages <= SIBLINGS


def _find_shared_classes(nodes: list[ast.AST]) -> list[str]:
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def _is_protocol(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases
    )


def _count_lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _find_long_functions(modules: list[Module]) -> list[str]:
    return [
        f"{module.path}:{function.name} ({_count_lines(function)} lines)"
        for module in modules
        for function in module.functions
        if _count_lines(function) > 60
    ]


def _count_exports(modules: list[Module]) -> int:
    """How many names the package itself exports."""
    [package] = [module for module in modules if module.path == Path("__init__.py")]
    for statement in package.nodes:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return len(ast.literal_eval(statement.value))
    return 0


def _count_parameters(function: Function) -> int:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in named)


def _count_app_parameters(modules: list[Module]) -> int:
    [app] = [module for module in modules if module.path == Path("app.py")]
    [cls] = [node for node in app.nodes if isinstance(node, ast.ClassDef) and node.name == "App"]
    [init] = [node for node in cls.body if isinstance(node, Function) and node.name == "__init__"]
    return _count_parameters(init)


def _count_durable_parameters(modules: list[Module]) -> int:
    adapters = [module for module in modules if module.path.parts[0] == "adapters"]
    found = [function for module in adapters for function in module.functions if function.name == "durable"]
    return max(_count_parameters(function) for function in found)


def _find_importers(modules: list[Module], name: str) -> list[str]:
    return [str(module.path) for module in modules if name in _find_imports(module)]


def _find_imports(module: Module) -> set[str]:
    """The modules that this one imports, by their full names."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def compare(figures: dict[str, Figure], caps: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return what to print, and a sentence for each figure that is above its cap."""
    lines, broken = [], []
    for name, figure in figures.items():
        cap = caps[name]
        note = "  lower the cap" if figure.value < cap else ""
        lines.append(f"{figure.value:>7,}  of {cap:>6,}  {name}{note}")
        if figure.value > cap:
            details = f": {figure.details}" if figure.details else ""
            broken.append(f"{name}: {figure.value:,}, and at most {cap:,} are allowed{details}")
    return lines, broken


def check_sizes(modules: list[Module]) -> tuple[list[str], list[str]]:
    """Return notes on files that shrank, and a sentence for each file or function that is too long."""
    notes, broken = [], []
    for module in modules:
        cap = LONG_FILES.get(str(module.path), FILE_LINES)
        if module.line_count > cap:
            broken.append(f"{module.path} has {module.line_count} lines, and at most {cap} are allowed")
    sizes = {str(module.path): module.line_count for module in modules}
    for path, cap in LONG_FILES.items():
        if sizes.get(path, 0) < cap:
            notes.append(f"{sizes.get(path, 0):>7,}  of {cap:>6,}  lines of {path}  lower the cap")
    lengths = sorted(_count_lines(function) for module in modules for function in module.functions)
    ninth = lengths[int(len(lengths) * 0.9)]
    if ninth >= FUNCTION_LINES:
        broken.append(f"one of ten functions has {ninth} lines or more: nine of ten stay under {FUNCTION_LINES}")
    return notes, broken


def find_old_identifiers(root: Path, identifiers: list[str]) -> list[str]:
    """Return a sentence for each identifier that is back, in code, SQL, docs or tests."""
    words = re.compile(rf"\b({'|'.join(identifiers)})\b")
    places = (
        "src/**/*.py",
        "src/**/*.sql",
        "docs/**/*.md",
        "tests/**/*.py",
        "examples/**/*.py",
        "bench/**/*.py",
        "*.md",
    )
    found_files = {file for place in places for file in root.glob(place) if file.name != "CHANGELOG.md"}
    # The environments of benchmarks are hidden folders, with the code of others.
    files = sorted(file for file in found_files if not any(part[0] == "." for part in file.relative_to(root).parts))
    return [
        f"{file.relative_to(root)}:{number}: the identifier {found[0]} was given up"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for found in words.finditer(line)
    ]


def print_rooms(modules: list[Module]) -> None:
    """Print each package, then its modules with the first line of their docstrings."""
    packages: dict[Path, list[Module]] = defaultdict(list)
    for module in modules:
        packages[module.path.parent].append(module)
    for package, members in sorted(packages.items()):
        print(f"\nholdfast/{package}".removesuffix("/."))
        for module in members:
            print(f"  {module.path.stem:24} {module.purpose}")


def main() -> int:
    modules = read_modules(ROOT / "src" / "holdfast")
    if "--rooms" in sys.argv[1:]:
        print_rooms(modules)
        return 0
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    reference = "".join(page.read_text(encoding="utf-8") for page in pages)
    lines, broken = compare(measure(modules, reference), CAPS)
    notes, too_long = check_sizes(modules)
    broken += [*too_long, *find_old_identifiers(ROOT, OLD_IDENTIFIERS)]
    print(*lines, *notes, *broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
