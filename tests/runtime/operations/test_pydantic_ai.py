"""Conversations with agents of pydantic-ai."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from holdfast import App
from holdfast.adapters.pydantic_ai import durable
from holdfast.core.execution.turn_cycle import CLOSED_CALL
from holdfast.errors import TurnFailed
from holdfast.stores.memory import MemoryStore


class Note(BaseModel):
    """A typed output."""

    number: int
    text: str


class Script:
    """A model that looks something up, and then answers with the number of messages and the last one."""

    def __init__(self) -> None:
        self.asked: list[list[ModelMessage]] = []
        self.broken = False
        #: Requests that wait, if it is set.
        self.opened: asyncio.Queue[None] | None = None
        self.reached: asyncio.Queue[None] = asyncio.Queue()

    async def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(messages)
        self.reached.put_nowait(None)
        if self.opened is not None:
            await self.opened.get()
        if self.broken:
            raise ValueError("broken")
        texts = list_prompts(messages)
        if not any(part.part_kind == "tool-return" for part in messages[-1].parts[-1:]):
            return ModelResponse(parts=[ToolCallPart("look", {}, "look")])
        if info.output_tools:
            arguments = {"number": len(texts), "text": str(texts[-1])}
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, arguments, "output")])
        return ModelResponse(parts=[TextPart(f"{len(texts)} {texts[-1]}")])

    def make_agent(self, output_type: Any = str) -> PydanticAgent[None, Any]:
        agent: PydanticAgent[None, Any] = PydanticAgent(
            FunctionModel(self.reply), name="a", output_type=output_type, system_prompt="Be kind."
        )
        self.prompts: list[Any] = []

        @agent.tool
        async def look(ctx: RunContext[None]) -> str:
            self.prompts.append(ctx.prompt)
            if ctx.prompt == "fail":
                raise ValueError("no such thing")
            return "seen"

        return agent


def list_prompts(messages: Sequence[ModelMessage]) -> list[Any]:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    return [part.content for part in parts if isinstance(part, UserPromptPart)]


@pytest.mark.parametrize("output_type", [str, Note])
async def test_the_output_of_each_turn_is_typed(output_type: type, store_url: str) -> None:
    script = Script()
    agent = durable(script.make_agent(output_type))
    async with App([agent], store_url) as app:
        chat = app.conversation(agent, "k")
        turns = [await chat.send(f"text {number}", id=f"m{number}") for number in range(3)]
        for number, turn in enumerate(turns):
            typed = Note(number=number + 1, text=turn.prompt)
            assert turn.output == (typed if output_type is Note else f"{number + 1} {turn.prompt}")
        assert [turn.steps for turn in turns] == [2] * 3
        assert [turn.usage.requests for turn in turns] == [2] * 3
        assert await chat.send("text 0", id="m0") == turns[0]
        assert list_prompts(turns[2].messages) == ["text 2"]
        assert (await app.get(chat.run_id)).usage.requests == 6
    assert script.prompts == ["text 0", "text 1", "text 2"]
    assert all(message.parts for message in script.asked[-1])
    assert sum(part.part_kind == "system-prompt" for message in script.asked[-1] for part in message.parts) == 1


async def test_a_failed_turn_leaves_a_history_that_pydantic_ai_accepts() -> None:
    script = Script()
    agent = durable(script.make_agent())
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation(agent, "k")
        script.broken = True
        with pytest.raises(TurnFailed, match="broken"):
            await chat.send("one")
        script.broken = False
        with pytest.raises(TurnFailed, match="no such thing"):
            await chat.send("fail")
        assert (await chat.send("two")).output == "3 two"
    returns = [part for message in script.asked[-1] for part in message.parts if part.part_kind == "tool-return"]
    assert [part.content for part in returns] == [CLOSED_CALL, "seen"]


async def test_messages_steer_and_interrupt_a_turn() -> None:
    script = Script()
    script.opened = asyncio.Queue()
    agent = durable(script.make_agent())
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation(agent, "k")
        first = asyncio.create_task(chat.send("one"))
        await script.reached.get()
        await chat.post("and two", when="steer")
        for _ in range(3):
            script.opened.put_nowait(None)
        assert (await first).output == "2 and two"
        while not script.reached.empty():
            script.reached.get_nowait()
        interrupted = asyncio.create_task(chat.send("three"))
        await script.reached.get()
        await chat.post("stop", id="stop", when="interrupt")
        for _ in range(3):
            script.opened.put_nowait(None)
        with pytest.raises(TurnFailed, match="interrupted"):
            await interrupted
        assert (await chat.result("stop")).output == "4 stop"


async def test_limits_hold_for_a_turn_and_the_initial_history_comes_once() -> None:
    script = Script()
    made: list[str] = []

    def history(info: Any) -> list[ModelMessage]:
        made.append(info.run_id)
        return [ModelRequest(parts=[UserPromptPart("before")]), ModelResponse(parts=[TextPart("yes")])]

    agent = durable(script.make_agent(), history=history, usage_limits=UsageLimits(request_limit=2))
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation(agent, "k")
        assert [(await chat.send("text")).output for _ in range(3)] == ["2 text", "3 text", "4 text"]
    assert len(made) == 1


async def test_content_parts_and_compaction() -> None:
    script = Script()

    async def compact(messages: Sequence[Any]) -> list[Any] | None:
        return [ModelRequest(parts=[UserPromptPart("(summary)")]), messages[-1]] if len(messages) > 8 else None

    agent = durable(script.make_agent(Note), compact=compact)
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation(agent, "k")
        picture = BinaryContent(b"png", media_type="image/png")
        turn = await chat.send(["look", picture], id="m0")
        [[text, image]] = list_prompts(turn.messages)
        assert (text, image.data) == ("look", b"png")
        turns = [await chat.send(f"text {n}") for n in range(6)]
        assert [turn.output.text for turn in turns] == [f"text {n}" for n in range(6)]
        assert (await chat.send(["look", picture], id="m0")).number == 1
