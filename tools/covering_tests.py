"""A pytest plugin of `tools/mutants.py`: record which tests enter which functions, and run them with mutants.

    COVERING_RECORD=FILE pytest -p tools.covering_tests ...     write the seconds and the functions of each test
    COVERING_TESTS=FILE pytest -p tools.covering_tests ...      run unknown tests, then those under "run", in its order
    COVERING_MUTANTS=FILE pytest -p tools.covering_tests ...    run the tests of each mutant in a fork of this process

Only the process of pytest is observed. Functions that its child processes enter are not recorded.

A fork saves the seconds that pytest takes to import and collect. The mutant is on the disk, for modules that are
imported later and for other processes, and the functions that exist get the code of the mutant.
"""

import gc
import itertools
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

#: Entered by a test that starts a process or connects to one, whose functions are not observed.
PROCESS = "a process"
#: The last two: a fork server, and a server that another test has started.
_PROCESS_EVENTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.sendmsg", "socket.connect")

_entered: set[CodeType] = set()
_processes: list[str] = []
_recorded: dict[str, tuple[float, list[str]]] = {}
_failed: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    given = os.environ.get("COVERING_TESTS") or os.environ.get("COVERING_MUTANTS")
    if given is None:
        return
    chosen = json.loads(Path(given).read_text())
    if "COVERING_TESTS" in os.environ:
        order = {name: index for index, name in enumerate(chosen["run"])}
        skipped = set(chosen["known"]) - order.keys()
        items[:] = [item for item in items if item.nodeid not in skipped]
        items.sort(key=lambda item: order.get(item.nodeid, -1))
    for item in items:  # a mutant that makes a test hang is common
        item.add_marker(pytest.mark.timeout(20 + 10 * chosen["known"].get(item.nodeid, 4.0)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "COVERING_RECORD" not in os.environ:
        return (yield)
    _entered.clear()
    _processes.clear()
    threading.settrace(_enter)
    sys.settrace(_enter)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(_ignore)
        _recorded[item.nodeid] = (time.monotonic() - began, sorted(_name_functions() | set(_processes)))


def pytest_sessionfinish() -> None:
    if "COVERING_RECORD" in os.environ:
        Path(os.environ["COVERING_RECORD"]).write_text(json.dumps(_recorded))


def _notice_process(event: str, _arguments: tuple[object, ...]) -> None:
    if event in _PROCESS_EVENTS:
        _processes.append(PROCESS)


sys.addaudithook(_notice_process)


def _enter(frame: FrameType, _event: str, _argument: object) -> None:
    _entered.add(frame.f_code)


def _ignore(_frame: FrameType, _event: str, _argument: object) -> None:
    """Trace nothing."""


def _name_functions() -> set[str]:
    """Return the functions of the package that were entered, each as the name of its file and its qualified name.

    Without the folder: what is remembered is valid after a move.
    """
    names = set()
    for code in _entered.copy():
        if "/src/holdfast/" in code.co_filename:
            names.add(f"{code.co_filename.rpartition('/')[2]}::{code.co_qualname}")
    return names


# -- mutants in forks -------------------------------------------------------------------------------------------------


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.append(report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> object:
    """Run the tests of each mutant, and write a line of JSON for each: its index and the test that failed, or none."""
    if "COVERING_MUTANTS" not in os.environ or session.testsfailed:  # a module cannot be imported: pytest reports it
        return None
    chosen = json.loads(Path(os.environ["COVERING_MUTANTS"]).read_text())
    items = {item.nodeid: item for item in session.items}
    functions = _find_functions()
    unknown = [item for name, item in items.items() if name not in chosen["known"]]
    for index, mutant in enumerate(chosen["mutants"]):
        tests = [*unknown, *(items[name] for name in mutant["run"] if name in items)]
        path = Path(mutant["path"]).absolute()
        original = path.read_bytes()
        path.write_bytes(original[: mutant["start"]] + mutant["new"].encode() + original[mutant["end"] :])
        os.utime(path, (mutant["number"], mutant["number"]))  # compiled modules are compared by this time and the size
        try:
            seconds = sum(chosen["known"].get(item.nodeid, 4.0) for item in tests)
            result = _run_in_fork(session, tests, path, mutant["function"], functions, 60 + 4 * seconds)
        finally:
            path.write_bytes(original)
        os.write(chosen["results"], f"{json.dumps([index, result])}\n".encode())
    return True


def _run_in_fork(
    session: pytest.Session,
    tests: list[pytest.Item],
    path: Path,
    function: str,
    functions: dict[tuple[str, str], list[FunctionType]],
    timeout_s: float,
) -> str | None:
    """Return a test that fails, or None; "fresh" if only a new process executes the mutant."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            result = _run_tests(session, tests, path, function, functions)
            os.write(writing, json.dumps(result).encode())
        finally:
            os._exit(1)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], timeout_s)
    answer = os.read(reading, 10_000) if ready else b'"a timeout"'
    os.close(reading)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found: str | None = json.loads(answer or b'"the end of the process"')
    return found


def _run_tests(
    session: pytest.Session,
    tests: list[pytest.Item],
    path: Path,
    function: str,
    functions: dict[tuple[str, str], list[FunctionType]],
) -> str | None:
    try:
        changed = {
            (code.co_qualname, code.co_firstlineno): code
            for code in _walk_code(compile(path.read_bytes(), str(path), "exec"))
        }
        is_changed = False
        for each in functions.get((str(path), function), []):
            code = changed[function, each.__code__.co_firstlineno]
            is_changed = is_changed or code != each.__code__
            each.__code__ = code
    except (ValueError, KeyError):  # such as a function that no longer needs the cell of super()
        return "fresh"
    if not is_changed:  # such as the default of an argument
        return "fresh"
    _failed.clear()
    for item, following in itertools.zip_longest(tests, tests[1:]):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if _failed:
            break
    return _failed[0] if _failed else None


def _find_functions() -> dict[tuple[str, str], list[FunctionType]]:
    """Return the functions of the package, by their file and qualified name."""
    gc.unfreeze()
    found: dict[tuple[str, str], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and "/src/holdfast/" in each.__code__.co_filename:
            found.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
    gc.freeze()
    return found


def _walk_code(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _walk_code(each)
