"""Conversations and crashes: each message is answered once, and none is lost. The oracle is outside the store."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.probe_store import ProbeStore
from tests.scripted_model import call, tool_reply

from holdfast import Agent, App, CheckpointSettings, Reply, ToolResult, User, tool
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import WorkerIdentity
from holdfast.core import Message, ToolSchema
from holdfast.core.agents.agent import AgentSource
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.stores.memory import MemoryStore

_WRITES = ("create", "post", "claim", "append", "release")


class DyingStore(ProbeStore):
    """One side of a store. It dies before or after one of its writes."""

    def __init__(self, inner: MemoryStore, die_at: int, when: str) -> None:
        super().__init__(inner, before=self._count)
        self._left = die_at if when == "before" else die_at + 1
        self.died = asyncio.Event()
        self.worker_id = ""

    async def _count(self, method: str) -> None:
        self._left -= method in _WRITES
        if self._left == 0:
            self.die()
            self.died.set()
            raise RuntimeError("killed")

    async def register_worker(self, worker: WorkerIdentity) -> None:
        self.worker_id = worker.worker_id
        await super().register_worker(worker)


class Story:
    """Three messages, each answered after one payment. The process dies before or after one of its writes."""

    def __init__(self, kind: str, save_interval: timedelta) -> None:
        self.inner, self.settings = MemoryStore(), CheckpointSettings(save_interval=save_interval)
        self.paid: list[str] = []
        #: The messages that the model was asked about after a payment.
        self.answered: list[str] = []
        self.agent: AgentSource = self._make_native() if kind == "native" else self._make_pydantic_ai()

    def _make_native(self) -> Agent:
        @tool
        async def pay(what: str) -> str:
            self.paid.append(what)
            return f"paid {what}"

        async def reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
            asked = [message.text for message in messages if isinstance(message, User)][-1]
            if not isinstance(messages[-1], ToolResult):
                return tool_reply(call("1", "pay", what=asked))
            self.answered.append(asked)
            return Reply(text=f"{asked}: {messages[-1].content}")

        return Agent(name="a", model=reply, tools=[pay])

    def _make_pydantic_ai(self) -> Agent:
        def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
            asked = str([part.content for part in parts if part.part_kind == "user-prompt"][-1])
            last = messages[-1].parts[-1]
            if not isinstance(last, ToolReturnPart):
                return ModelResponse(parts=[ToolCallPart("pay", {"what": asked}, "1")])
            self.answered.append(asked)
            return ModelResponse(parts=[TextPart(f"{asked}: {last.content}")])

        agent = PydanticAgent(FunctionModel(reply), name="a")

        @agent.tool_plain
        async def pay(what: str) -> str:
            self.paid.append(what)
            return f"paid {what}"

        return durable(agent)

    async def tell(self, store: DyingStore) -> None:
        """Send the messages from a process that may die."""
        app = App([self.agent], store, checkpoint=self.settings, worker=False)
        await app.__aenter__()
        sending = asyncio.create_task(self.send(app))
        died = asyncio.create_task(store.died.wait())
        await asyncio.wait([sending, died], return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()
        died.cancel()
        await asyncio.gather(sending, app.__aexit__(), return_exceptions=True)
        await self.inner.deregister_worker(store.worker_id)

    async def finish(self) -> list[str]:
        """Send the messages again, from a process that lives, and check the store."""
        async with App([self.agent], ProbeStore(self.inner), checkpoint=self.settings, worker=False) as app:
            outputs = await self.send(app)
            chat = app.conversation("a", "k")
            history = await chat.history()
            assert [(turn.number, turn.turn_id, turn.prompt) for turn in history] == [
                (1, "m0", "m0"),
                (2, "m1", "m1"),
                (3, "m2", "m2"),
            ]
            assert [turn.steps for turn in history] == [2, 2, 2], "a step was counted twice"
            assert (await self.inner.load(chat.run_id, after=END)).mail == ()
            return outputs

    async def send(self, app: App) -> list[str]:
        chat = app.conversation("a", "k")
        return [(await chat.send(f"m{number}", id=f"m{number}")).output for number in range(3)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("kind", "save_interval"), [("native", 0), ("native", 3600), ("pydantic-ai", 0)])
async def test_a_death_at_any_write_answers_each_message_once(kind: str, save_interval: int, when: str) -> None:
    for die_at in range(1, 100):
        story = Story(kind, timedelta(seconds=save_interval))
        store = DyingStore(story.inner, die_at, when)
        await asyncio.wait_for(story.tell(store), 60)
        outputs = await asyncio.wait_for(story.finish(), 60)
        assert max(Counter(story.paid).values()) == 1, "a payment was made twice"
        for number, output in enumerate(outputs):
            in_doubt = store.died.is_set() and output == f"m{number}: {UNKNOWN_OUTCOME}"
            assert in_doubt or (output, f"m{number}" in story.paid) == (f"m{number}: paid m{number}", True)
        # A reply that was not saved is asked for again.
        assert sum(Counter(story.answered).values()) - 3 <= store.died.is_set()
        if not store.died.is_set():
            assert die_at > 12
            return
    raise AssertionError("the story never ended")


async def test_a_tool_of_a_resumed_turn_knows_the_prompt() -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[ToolCallPart("look", {}, f"{asked}") if asked % 3 < 2 else TextPart("done")])

    agent: PydanticAgent[None, str] = PydanticAgent(FunctionModel(reply), name="a")
    prompts: list[Any] = []

    @agent.tool
    async def look(ctx: RunContext[None]) -> str:
        prompts.append(ctx.prompt)
        return "seen"

    for die_at in range(1, 12):
        story = Story("native", timedelta(0))
        story.agent = durable(agent, tools={"look": ToolPolicy("pure")})
        await story.tell(DyingStore(story.inner, die_at, "after"))
        await story.tell(DyingStore(story.inner, 1000, "after"))
    assert set(prompts) == {"m0", "m1", "m2"}
