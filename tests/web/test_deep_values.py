"""Values of 500 levels, which runs accept: every reader gets them back."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.web.site import make_agents

from holdfast.app import App
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import tool
from holdfast.mcp.server import encode_bounded
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.server import make_web

DEEP = json.loads("[" * 500 + "]" * 500)


@tool
async def dig() -> list[object]:
    """Return deep data."""
    return DEEP  # type: ignore[no-any-return]


async def test_a_deep_result_is_in_every_page_event_and_export(tmp_path: Path) -> None:
    digger = Agent(name="digger", model=ScriptedModel(tool_reply(call("d1", "dig")), "deep"), tools=[dig])
    async with App([*make_agents(tmp_path), digger], f"sqlite:{tmp_path / 'runs.db'}") as app:
        await app.run("digger", "dig", run_id="deep")
        site = make_web(app, authorize=lambda request: LOCAL_PRINCIPAL)
        transport = httpx.ASGITransport(site, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client, asyncio.timeout(60):
            for path in ("", "/export.html", "/request/2", "/fork/1", "?q=dig", "/compare"):
                assert (await client.get(f"/runs/deep{path}")).status_code == 200, path
            assert (await client.get("/api/runs/deep")).json()["output"] == "deep"
            for path in ("/runs/deep/export.json", "/api/runs/deep/events"):
                sent = "".join((await client.get(path)).text.split())
                assert json.dumps(DEEP, separators=(",", ":")) in sent, path


@pytest.mark.parametrize("value", [DEEP, {"a": {"b": DEEP}}, [[1, *DEEP], "x" * 100_000]])
def test_a_coding_assistant_reads_deep_data(value: object) -> None:
    assert "[[[[" in encode_bounded(value)
