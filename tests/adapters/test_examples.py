"""The example that needs a key says which; with one, it asks the provider and continues after a kill."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.adapters.openai_server import OpenAIServer, Request, Turn

EXAMPLE = Path(__file__).parents[2] / "examples" / "provider_by_name.py"
KEYLESS = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}


async def started(folder: Path, model: str, **env: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, EXAMPLE, model, "What day is it?", cwd=folder, env=KEYLESS | env, stdout=pipe, stderr=pipe
    )


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("openai:gpt-5", "openai:gpt-5 needs a key: set the environment variable OPENAI_API_KEY\n"),
        ("anthropic:claude-x", "anthropic:claude-x needs a key: set the environment variable ANTHROPIC_API_KEY\n"),
        ("unheard-of:x", "unknown provider 'unheard-of': use one of openai, openai-chat, anthropic\n"),
    ],
)
async def test_without_a_key_it_says_which_one_it_needs(tmp_path: Path, model: str, text: str) -> None:
    process = await started(tmp_path, model)
    out, err = await process.communicate()
    assert (process.returncode, out, err.decode()) == (1, b"", text)


async def test_with_a_key_it_answers_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    process: asyncio.subprocess.Process | None = None

    def kill(request: Request) -> None:
        if request.turn == 1 and len(server.log) == 2 and process is not None:
            os.kill(process.pid, signal.SIGKILL)

    turns: list[Turn] = [[("c1", "today", {})], "It is today."]
    async with OpenAIServer(turns, {1: ["hang"]}, arrived=kill).serving() as server:
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
        process = await started(tmp_path, "openai-chat:gpt-4o", **env)
        await process.communicate()
        assert process.returncode == -signal.SIGKILL
        process = await started(tmp_path, "openai-chat:gpt-4o", **env)
        out, err = await process.communicate()
    assert (process.returncode, out.decode()) == (0, "It is today. \n"), err
    assert "2202 tokens, $0." in err.decode()
    assert [request.outcome for request in server.log] == ["answered", "hang", "answered"]
