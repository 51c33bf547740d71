"""Models by name, over HTTP, through a SIGKILL: the server's log tells who was asked how often."""

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import msgspec
from tests.adapters.openai_server import OpenAIServer, Request
from tests.fanout.http_process import MODELS

from holdfast.fanout import ModelResponse, WriteSnapshot, load

TURNS = (
    [("c1", "write_file", {"path": "b.txt", "content": "one"})],
    [("c1", "edit_file", {"path": "b.txt", "old": "one", "new": "two"})],
    "it is written",
)


async def test_a_model_that_has_answered_is_not_asked_again(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with OpenAIServer(TURNS).serving() as server:
        env = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none", "PYDANTIC_AI_NO_BANNER": "1"}
        command = [sys.executable, "-m", "tests.fanout.http_process", str(tmp_path)]
        child = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)

        def kill_at_the_fifth(request: Request) -> None:
            if len(server.log) == 5:  # the second turn of the second model
                child.send_signal(signal.SIGKILL)

        server.arrived = kill_at_the_fifth
        await child.communicate()
        assert child.returncode == -signal.SIGKILL
        kept = load(tmp_path / "kept.json")
        assert kept is not None
        assert [(each.model_id, each.completed) for each in kept.responses] == [(MODELS[0], True), (MODELS[1], False)]
        child = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
        output, _ = await child.communicate()
        assert child.returncode == 0
    responses = msgspec.json.decode(output, type=list[ModelResponse])
    assert [response.model_id for response in responses] == MODELS
    for response in responses:
        assert (response.text.strip(), response.error) == ("it is written", "")
        assert response.proposed_writes == (WriteSnapshot(path="b.txt", content="two"),)
        assert (response.input_tokens, response.output_tokens) == (3003, 303)
        assert response.cost_usd > 0
    asked = Counter((request.body["model"], request.turn) for request in server.log)
    names = [model.partition(":")[2] for model in MODELS]
    assert asked == Counter([*((name, turn) for name in names for turn in range(3)), (names[1], 1)])
