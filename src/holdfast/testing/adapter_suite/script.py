"""The script from which a driver makes an agent: replies and recorded tools."""

import importlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from holdfast.core.agents.agent import Agent, MissingTools
from holdfast.core.agents.calls import Effect
from holdfast.core.run.result import Result
from holdfast.runtime.operations.conversations import Turn

#: The usage that the model of a driver reports for each reply.
INPUT_TOKENS = 10
OUTPUT_TOKENS = 3


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call that the model asks for. Every tool of the suite has the one parameter `city`."""

    call_id: str
    tool: str
    city: str


#: A reply of the model: the answer, or calls.
Step = str | Sequence[ScriptedCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTool:
    """A tool of the suite. The driver turns it into a tool of its framework."""

    name: str
    function: Callable[[str], Awaitable[str]]
    effect: Effect = Effect.ONCE
    needs_approval: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScript:
    """An agent of the suite."""

    steps: Sequence[Step]
    tools: Sequence[ScriptedTool] = ()
    name: str = "scripted"
    #: Ask the model for streams; its text comes word by word.
    stream: bool = False
    missing_tools: MissingTools = "defer"
    #: The model calls this with the number of the step before it replies.
    on_request: Callable[[int], Awaitable[None]] | None = None

    async def reply(self, seen: Collection[str]) -> Step:
        """Return the reply to a conversation: the first step of which it shows no call yet.

        Args:
            seen: the ids of the calls in the conversation. The model has no other memory: any process may ask it.
        """
        number = next(index for index, step in enumerate(self.steps) if not _is_seen(step, seen))
        if self.on_request is not None:
            await self.on_request(number)
        return self.steps[number]


def _is_seen(step: Step, seen: Collection[str]) -> bool:
    return not isinstance(step, str) and any(call.call_id in seen for call in step)


class AdapterDriver(Protocol):
    """Makes agents of one framework. At the top of a module, so that other processes can import it."""

    #: The name of the framework, for the table in the documentation.
    name: ClassVar[str]
    #: Features of the suite that the adapter does not support, each with the reason. Their tests have to fail.
    unsupported: ClassVar[Mapping[str, str]]

    def make_agent(self, script: AgentScript) -> Agent[Any]:
        """Return an agent whose model follows the script, with the script's tools."""
        ...

    def get_answer(self, output: Any) -> str:
        """Return the text of the answer in the output of a run."""
        ...


@dataclass
class CallLog:
    """Remembers what the tools and the model of a script did, in this process."""

    calls: list[str] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    #: Awaited before each call, with its tool and city, and before each request, with `request` and its number.
    reach: Callable[[str], Awaitable[None]] | None = None

    def make_tool(self, name: str, effect: Effect = Effect.ONCE, *, needs_approval: bool = False) -> ScriptedTool:
        """Return a tool that logs its calls."""

        async def call(city: str) -> str:
            self.calls.append(f"{name} {city}")
            if self.reach is not None:
                await self.reach(f"{name} {city}")
            return f"{name} {city}: ok"

        return ScriptedTool(name=name, function=call, effect=effect, needs_approval=needs_approval)

    async def on_request(self, number: int) -> None:
        """Log a request to the model."""
        self.requests.append(number)
        if self.reach is not None:
            await self.reach(f"request {number}")


STEPS: Sequence[Step] = (
    [
        ScriptedCall("c1", "pay", "Lyon"),
        ScriptedCall("c2", "look", "Bonn"),
        ScriptedCall("c3", "reserve", "Faro"),
    ],
    [ScriptedCall("c4", "pay", "Nice")],
    "all is paid",
)


def make_tools(log: CallLog) -> list[ScriptedTool]:
    """Return a tool of each effect."""
    return [
        log.make_tool("pay"),
        log.make_tool("look", Effect.PURE),
        log.make_tool("reserve", Effect.IDEMPOTENT),
    ]


def make_script(log: CallLog, **changes: Any) -> AgentScript:
    """Return the script of the suite, with a log."""
    return replace(AgentScript(steps=STEPS, tools=make_tools(log), on_request=log.on_request), **changes)


def import_driver(path: str) -> AdapterDriver:
    """Return the driver at `module:attribute`."""
    module, _, attribute = path.partition(":")
    driver: AdapterDriver = getattr(importlib.import_module(module), attribute)
    return driver


def get_answer(driver: str, result: Result | Turn) -> str:
    """Return the text of the answer of a run, or of a turn of a conversation."""
    return import_driver(driver).get_answer(result.output)


#: Each feature, and what its tests show.
FEATURES = {
    "batches": "a kill in the middle of a batch repeats neither the model call nor finished calls",
    "model calls": "a kill in a model call repeats that call only",
    "writes": "a kill before or after any write, or inside any tool, changes nothing",
    "effects": "a `once` call in doubt is reported and not repeated",
    "usage": "tokens and requests count over a resume",
    "deploys": "a removed tool defers the run, parks it, or is reported to the model",
    "approvals": "a call waits for a person; the other calls of its batch do not",
    "streams": "the text of a reply is shown as it arrives",
    "forks": "a fork continues after an edited result or message, and repeats no recorded call",
    "conversations": "each message is answered with the history before it",
}

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def tests_feature(name: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a test of the suite with the feature that it tests."""
    assert name in FEATURES, name

    def mark(function: FunctionT) -> FunctionT:
        function.feature = name  # type: ignore[attr-defined]
        return function

    return mark


def make_table(drivers: Sequence[AdapterDriver]) -> str:
    """Return what each adapter supports as a Markdown table."""
    head = f"| | {' | '.join(driver.name for driver in drivers)} |"
    rows = [head, "|---" * (len(drivers) + 1) + "|"]
    for name, shown in FEATURES.items():
        cells = [driver.unsupported.get(name, "yes") for driver in drivers]
        rows.append(f"| **{name}**: {shown} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
