"""Prompts of content parts: pictures and files reach the model unchanged, also after a crash."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, AudioUrl, BinaryContent, DocumentUrl, ImageUrl, RunContext, VideoUrl
from pydantic_ai.messages import CachePoint, ModelMessage, TextContent, UserPromptPart
from tests.adapters.scripted_model import ScriptedModel, call

from holdfast import App, Phase, Result, WorkerSettings
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.errors import RunConflict
from holdfast.checkpoint.store import get_record
from holdfast.core.errors import DefinitionError
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.stores.memory import MemoryStore

#: Every byte, and lengths that base64 pads differently.
PICTURE = BinaryContent(bytes(range(256)) + b"\xfb\xff", media_type="image/png", vendor_metadata={"detail": "high"})
PARTS: list[Any] = [
    "What is in these?",
    PICTURE,
    BinaryContent(b"%PDF-1.7\xff", media_type="application/pdf", identifier="contract"),
    ImageUrl(url="https://example.com/a.png", force_download=True),
    DocumentUrl(url="https://example.com/a", media_type="application/pdf"),
    AudioUrl(url="https://example.com/a.mp3"),
    VideoUrl(url="https://example.com/a.mp4"),
    TextContent(content="a note", metadata={"page": 3}),
    CachePoint(),
    "Be brief.",
]
SUMMARY = (
    "What is in these? [binary image/png] [binary application/pdf] [image-url image/png] "
    "[document-url application/pdf] [audio-url audio/mpeg] [video-url video/mp4] a note [cache-point] Be brief."
)
NO_WORKER = WorkerSettings(take_runs=False)


def looking(script: ScriptedModel) -> Agent[object, str]:
    agent = Agent(script.model, name="looker")

    @agent.tool
    def kill_once(context: RunContext[object], path: str) -> Any:
        """Kill the process at the first call; then return the media types of the prompt."""
        if not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        assert isinstance(context.prompt, list)
        return [part.media_type for part in context.prompt if isinstance(part, BinaryContent)]

    return agent


def get_prompt(messages: list[ModelMessage]) -> list[Any]:
    [part] = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    assert not isinstance(part.content, str)
    return [_describe(each) for each in part.content]


def _describe(part: Any) -> Any:
    if isinstance(part, str):
        return part
    # A picture is of a class of its own once it was read from JSON.
    kind = BinaryContent if isinstance(part, BinaryContent) else type(part)
    names = (
        "data",
        "url",
        "content",
        "metadata",
        "ttl",
        "media_type",
        "identifier",
        "force_download",
        "vendor_metadata",
    )
    return kind, {name: getattr(part, name) for name in [*names, "vendor_metadata"] if hasattr(part, name)}


EXPECTED = [_describe(each) for each in PARTS]


async def run_parts(url: str, marker: Path) -> "tuple[Result[str], ScriptedModel]":
    script = ScriptedModel([call("1", "kill_once", path=str(marker))], "done")
    agent = durable(looking(script), tools={"kill_once": ToolPolicy("idempotent")})
    async with App([agent], url, worker=NO_WORKER) as app:
        return await app.run(agent, PARTS, run_id="r"), script


def test_a_killed_run_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    url, marker = f"sqlite:{tmp_path / 'runs.db'}", tmp_path / "killed"
    program = [sys.executable, "-m", "tests.adapters.test_prompt_parts"]
    killed = subprocess.run([*program, url, str(marker)], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()

    result, script = asyncio.run(run_parts(url, marker))

    assert result.output == "done"
    assert script.asked
    assert all(get_prompt(asked) == EXPECTED for asked in script.asked)
    returned = result.messages[2].parts[0].content
    assert returned == ["image/png", "application/pdf"], "a tool finds the parts in the prompt of its context"


async def test_a_submitted_prompt_is_the_same_for_a_worker(durable_store_url: str) -> None:
    script = ScriptedModel("done")
    agent = durable(Agent(script.model, name="looker"))
    async with App([agent], durable_store_url, worker=NO_WORKER) as app:
        await app.submit(agent, PARTS, run_id="r")
        assert await app.submit(agent, tuple(PARTS), run_id="r") == "r"
        other = [PARTS[0], BinaryContent(b"other", media_type="image/png"), *PARTS[2:]]
        for prompt in (other, SUMMARY):
            with pytest.raises(RunConflict):
                await app.submit(agent, prompt, run_id="r")
    async with App([agent], durable_store_url) as app:
        await app.result("r")
        assert app.store is not None
        record = await get_record(app.store, "r")
    assert [get_prompt(asked) for asked in script.asked] == [EXPECTED]
    assert summarize_run(record).prompt == SUMMARY[:200]
    assert len(record.info) < 600, "a listing does not load pictures"


async def test_a_phase_passes_the_parts_on() -> None:
    script = ScriptedModel("done")
    agent = replace(
        durable(Agent(script.model, name="looker")), phases=[Phase(name="look", prompt="Look at $prompt now")]
    )
    async with App([agent], None) as app:
        await app.run(agent, [PICTURE])
    assert get_prompt(script.asked[0]) == ["Look at ", _describe(PICTURE), " now"]


@pytest.mark.parametrize("part", [object(), 7, b"raw", {"kind": "odd"}, ["nested"]])
async def test_a_part_that_is_no_content_is_refused_at_once(part: Any) -> None:
    script = ScriptedModel("never")
    agent = durable(Agent(script.model, name="looker"))
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match=r"agent looker: the content part .* cannot be used"):
            await app.run(agent, ["Look", part])
    assert not script.asked


if __name__ == "__main__":
    asyncio.run(run_parts(sys.argv[1], Path(sys.argv[2])))
