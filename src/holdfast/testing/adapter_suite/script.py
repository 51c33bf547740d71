"""What a driver makes an agent of: scripted replies and recorded tools."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from holdfast.core.agent import Agent, MissingTools
from holdfast.core.effects import Effect

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
    """A tool that the driver makes a tool of its framework of."""

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
