"""Agents of pydantic-ai as cells: their proposals survive, too."""

import asyncio
from pathlib import Path

import pytest
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import models
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.fanout import Fanout, FanoutSettings, WriteSnapshot


@pytest.fixture(autouse=True)
def no_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


class Scripted:
    """Edits a file, is held, reads the file, and answers with what it read."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.reached, self.hold = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        self.turns.append(turn)
        if turn == 0:
            edit = {"path": "a.txt", "old": "hello", "new": "goodbye"}
            new = {"path": "b.txt", "content": "new"}
            return ModelResponse(parts=[ToolCallPart("edit_file", edit, "1"), ToolCallPart("write_file", new, "2")])
        if turn == 1:
            self.reached.set()
            await self.hold.wait()
            return ModelResponse(parts=[ToolCallPart("read_file", {"path": "a.txt"}, "1")])
        return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])  # type: ignore[union-attr]


async def test_a_stopped_agent_goes_on_with_what_it_had_proposed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("hello world")
    model = Scripted()
    agent = PydanticAIAgent(FunctionModel(model), name="scripted")

    def fanout() -> Fanout:
        return Fanout(
            "why?", {"p:agent": agent}, workspace=tmp_path / "work", store=f"sqlite:{tmp_path / 'runs.db'}",
            checkpoint=tmp_path / "checkpoint.json", settings=FanoutSettings(handle_signals=False),
        )  # fmt: skip

    task = asyncio.create_task(fanout().run())
    await model.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model.hold.set()
    (response,) = await fanout().run()
    assert (response.text, response.error) == ("goodbye world", "")
    assert response.proposed_writes == (
        WriteSnapshot(path="a.txt", content="goodbye world"),
        WriteSnapshot(path="b.txt", content="new"),
    )
    assert response.tool_calls == {"edit_file": 1, "write_file": 1, "read_file": 1}
    assert model.turns == [0, 1, 1, 2]
    assert (tmp_path / "work" / "a.txt").read_text() == "hello world"


async def test_an_output_that_is_no_text_is_json(tmp_path: Path) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"response": [1, 2]}, "1")])

    agent = PydanticAIAgent(FunctionModel(answer), name="numbers", output_type=list[int])
    settings = FanoutSettings(handle_signals=False)
    (response,) = await Fanout("why?", [agent], store="memory:", settings=settings).run()
    assert (response.text, response.error) == ("[1,2]", "")
