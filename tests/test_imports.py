"""What `import holdfast` brings, and what it does not."""

import inspect
import json
import subprocess
import sys
import textwrap
from importlib.resources import files
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import holdfast

ROOT = Path(__file__).parents[1]

#: Adding a name here is a promise to keep it.
PUBLIC = {
    "NOT_EXECUTED",
    "UNKNOWN",
    "Agent",
    "App",
    "ApprovalRequest",
    "Approve",
    "Bounds",
    "CheckpointSettings",
    "Completed",
    "Deferred",
    "Deny",
    "HoldfastError",
    "Phase",
    "Reply",
    "Result",
    "Retention",
    "Retry",
    "RunInfo",
    "RunWaiting",
    "System",
    "ToolCall",
    "ToolResult",
    "Usage",
    "User",
    "Value",
    "WorkerSettings",
    "ask_person",
    "current_call",
    "emit_text",
    "sleep",
    "tool",
    "wait_for",
}

#: Needed by one part or another, and not by `import holdfast`.
OPTIONAL = {
    "agents",
    "anthropic",
    "apsw",
    "httpx",
    "jinja2",
    "langchain_core",
    "langgraph",
    "openai",
    "opentelemetry",
    "psycopg",
    "pydantic",
    "pydantic_ai",
    "rich",
    "sqlite3",
    "starlette",
    "typer",
    "uvicorn",
}


def in_a_new_process(program: str) -> Any:
    """What the program prints as JSON."""
    shown = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(shown.stdout)


def test_import_holdfast_takes_the_standard_library_and_msgspec_and_nothing_else() -> None:
    loaded = in_a_new_process(
        """
        import json, sys
        before = set(sys.modules)
        import holdfast
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(json.dumps(sorted(new - sys.stdlib_module_names)))
        """
    )
    # msgspec takes typing_extensions where some other library has brought it.
    assert set(loaded) - {"typing_extensions"} == {"holdfast", "msgspec"}


def test_import_holdfast_loads_no_heavy_part_of_the_standard_library_either() -> None:
    loaded = in_a_new_process("import json, sys, holdfast; print(json.dumps(sorted(sys.modules)))")
    heavy = {"sqlite3", "http.client", "urllib.request", "multiprocessing", "unittest", "email", "xml", "tkinter"}
    assert heavy.isdisjoint(loaded)


def test_a_durable_run_needs_nothing_but_the_core() -> None:
    """Every optional library is made to look as if it were not installed."""
    said = in_a_new_process(
        f"""
        import asyncio, json, sys

        class NotInstalled:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {OPTIONAL!r}:
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, NotInstalled())
        from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, tool
        from holdfast.core import Executor

        @tool
        def look() -> str:
            return "seen"

        async def model(messages, tools):
            if isinstance(messages[-1], __import__("holdfast").ToolResult):
                return Reply(text="saw " + messages[-1].content)
            return Reply(tool_calls=[ToolCall(id="1", name="look")])

        agent = Agent(name="a", model=model, tools=[look])

        async def main():
            bare = await Executor().run(agent, "go")
            async with App([agent], "memory:", worker=WorkerSettings(handle_signals=False)) as app:
                durable = await app.run("a", "go")
            print(json.dumps([bare.output, durable.output]))

        asyncio.run(main())
        """
    )
    assert said == ["saw seen", "saw seen"]


def test_the_public_names_are_these() -> None:
    assert set(holdfast.__all__) == PUBLIC
    assert list(holdfast.__all__) == sorted(
        holdfast.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )
    for name in PUBLIC:
        assert hasattr(holdfast, name)


def test_no_public_name_is_missing_from_the_list() -> None:
    modules = {"app", "checkpoint", "clock", "core", "root_error"}
    named = {name for name in vars(holdfast) if not name.startswith("_")}
    assert {name for name in named - PUBLIC if not inspect.ismodule(getattr(holdfast, name))} == set()
    assert modules <= named


def test_the_package_says_that_it_is_typed() -> None:
    assert files("holdfast").joinpath("py.typed").is_file()


def _functions(owner: Any) -> list[FunctionType]:
    if inspect.isfunction(owner):
        return [owner]
    members = [member for name, member in vars(owner).items() if not name.startswith("_") or name == "__init__"]
    unwrapped = [getattr(member, "__func__", getattr(member, "fget", member)) for member in members]
    ours = [member for member in unwrapped if inspect.isfunction(member)]
    # Those that the standard library generates, such as the __init__ of a dataclass, are typed by its fields.
    return [member for member in ours if "holdfast" in member.__code__.co_filename]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_typed_and_says_what_it_is(name: str) -> None:
    public = getattr(holdfast, name)
    if not (inspect.isclass(public) or inspect.isfunction(public)):
        return
    assert inspect.getdoc(public), f"{name} has no docstring"
    for function in _functions(public):
        signature = inspect.signature(function)
        untyped = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
        ]
        assert not untyped, f"{function.__qualname__}: {untyped}"
        assert signature.return_annotation is not signature.empty, function.__qualname__
