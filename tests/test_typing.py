"""What a type checker knows about tools and the result of a run: mypy is run once, on a program of a user."""

import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"

#: mypy has to report exactly the lines that end with `# wrong`.
PROGRAM = """\
from dataclasses import dataclass

from pydantic_ai import Agent as PydanticAIAgent

from holdfast import Agent, App, Result, tool
from holdfast.core import Model
from holdfast.adapters.pydantic_ai import durable
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool import Tool
from holdfast.core.run.info import RunInfo


@dataclass
class Booking:
    name: str


class Source:
    name = "source"

    async def build(self, info: RunInfo) -> Agent[Booking]:
        return booking


booking = durable(PydanticAIAgent("test", name="booking", output_type=Booking))
text = durable(PydanticAIAgent("test", name="text"))
untyped: Agent = booking


@tool
async def look(name: str, *, deep: bool = False) -> list[str]:
    return [name]


@tool(effect="pure", sequential=True)
def count(names: list[str]) -> int:
    return len(names)


@tool(effect="pur")  # wrong
def misspelt() -> None: ...


@tool(efect="pure")  # wrong
def unknown_option() -> None: ...


async def call_tools(model: Model) -> None:
    found = await look("x", deep=True)
    found[0].upper()
    found[0].uper()  # wrong
    await look(1)  # wrong
    await look("x", dep=True)  # wrong
    total: int = await count(found)
    total = count(found)
    count("x")  # wrong
    several: list[Tool] = [look, count]
    Agent(name="a", model=model, tools=[*several, look, count, len])


async def main(model: Model) -> None:
    native = Agent(name="native", model=model)
    agents: list[AgentSource] = [booking, text, native, Source()]
    async with App(agents) as app:
        result = await app.run(booking, "go", inputs={"nights": 3})
        result.output.name.upper()
        result.output.nmae  # wrong
        (await app.run(Source(), "go")).output.nmae  # wrong
        (await app.run(text, ["look", "here"])).output.upper()
        (await app.run(text, "go")).output.uper()  # wrong
        (await app.run("booking", "go")).output.anything
        (await app.run(native, "go")).output.upper()
        (await app.run(untyped, "go")).output.anything
        stored: Result[Booking] = await app.result(await app.submit(booking, "go"))
        stored.output.nmae  # wrong
        turn = await app.conversation(booking, "key").send("go")
        turn.output.name.upper()
        turn.output.nmae  # wrong
        (await app.conversation("booking", "key").send("go")).output.anything
        plain: Result = result
        plain.output.anything
    app.run_sync(booking, "go").output.name.upper()
    app.run_sync(booking, "go").output.nmae  # wrong
    other: Result[int] = await app.run(booking, "go")  # wrong
"""

#: Follows the modules that declare the types in question: all of pydantic-ai takes mypy a minute.
SETTINGS = """\
[mypy]
strict = true
mypy_path = {src}
follow_imports = skip
[mypy-holdfast.*]
follow_imports = silent
[mypy-pydantic_ai,pydantic_ai.agent.*,pydantic_ai.output,pydantic_ai.tools,pydantic_ai._run_context]
follow_imports = silent
"""


def test_mypy_finds_misspelt_outputs_and_wrong_calls_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(SETTINGS.format(src=SRC))
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "/dev/null", "program.py"]
    report = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found = {int(line.split(":")[1]) for line in report.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), start=1) if line.endswith("# wrong")}
    assert found == wrong, report
