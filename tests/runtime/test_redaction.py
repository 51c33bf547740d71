"""Runs whose secrets are not stored: they are recognized, found and resumed like any other."""

import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import (
    Agent,
    App,
    CheckpointSettings,
    Deferred,
    Reply,
    Retry,
    RunWaiting,
    ToolResult,
    Usage,
    current_call,
    tool,
    wait_for,
)
from holdfast.checkpoint.codec import decode, decode_begin
from holdfast.checkpoint.errors import RunConflict
from holdfast.checkpoint.store import END, iter_runs
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import ModelUnavailable, Shutdown
from holdfast.core.redaction import Redactor
from holdfast.core.run.info import PROMPT_SUMMARY_LENGTH, RunInfo
from holdfast.core.run.run_events import CallDecided
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.runtime.reading.transcript import read_traces

PROMPT = "deploy with sk-123"


@pytest.fixture
def app(tmp_path: Path) -> App:
    return an_app(tmp_path)


def an_app(folder: Path, agent: Agent | None = None, pattern: str = r"sk-\d+") -> App:
    known = agent or Agent(name="agent", model=ScriptedModel("done"))
    return App(
        [known],
        f"sqlite:{folder}/runs.db",
        worker=False,
        checkpoint=CheckpointSettings(redact=Redactor(patterns=[pattern])),
    )


async def test_a_submitted_run_is_known_again_by_its_prompt(app: App) -> None:
    async with app:
        await app.submit("agent", PROMPT, run_id="r")
        assert await app.submit("agent", PROMPT, run_id="r") == "r"
        assert (await app.run("agent", PROMPT, run_id="r")).output == "done"
        for again in (app.submit, app.run):
            with pytest.raises(RunConflict):
                await again("agent", "remove with sk-123", run_id="r")


async def test_so_is_one_that_recovery_has_driven(tmp_path: Path) -> None:
    away = True

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if away:
            raise Shutdown("going down")
        return Reply(text="done")

    agent = Agent(name="agent", model=model)
    async with an_app(tmp_path, agent) as earlier:
        with pytest.raises(Shutdown):
            await earlier.run("agent", PROMPT, run_id="r")
    away = False
    async with an_app(tmp_path, agent) as app:
        await app.recover()
        assert (await app.run("agent", PROMPT, run_id="r")).output == "done"
        with pytest.raises(RunConflict):
            await app.run("agent", "remove with sk-123", run_id="r")


async def test_who_a_run_is_stays_readable_even_if_it_looks_like_a_secret(tmp_path: Path) -> None:
    agent = Agent(name="agent-sk-1", agent_id="sk-2", model=ScriptedModel("done"))
    async with an_app(tmp_path, agent) as app:
        await app.submit(
            "agent-sk-1", PROMPT, run_id="task-sk-77", caller_id="sk-3", channel_id="sk-4", guild_id="sk-5",
            labels={"key": "sk-6"},
        )  # fmt: skip
        await app.recover()
        assert (await app.result("task-sk-77")).output == "done"
        told = decode_begin(await app.open_store.load("task-sk-77")).info
        assert (told.run_id, told.agent_name, told.agent_id) == ("task-sk-77", "agent-sk-1", "sk-2")
        assert (told.caller_id, told.channel_id, told.guild_id) == ("sk-3", "sk-4", "sk-5")
        assert (told.prompt, told.labels) == ("deploy with [redacted]", {"key": "[redacted]"})


async def test_what_listings_show_of_a_prompt_has_no_half_of_a_secret(tmp_path: Path) -> None:
    async with an_app(tmp_path, pattern=r"sk-\d+!") as app:
        await app.submit("agent", "x" * (PROMPT_SUMMARY_LENGTH - 5) + "sk-123456789!", run_id="r")
        assert app.store is not None
        [record] = [record async for record in iter_runs(app.store)]
        assert "sk-" not in decode(record.info, RunInfo).prompt_text


#: Matches ids, times, hashes and kinds too.
EAGER = r"\d{2,}|result|[0-9a-f]{16,}"


async def test_the_token_of_a_call_is_not_stored_and_survives_every_redactor(tmp_path: Path) -> None:
    tokens: list[str] = []

    @tool
    async def render(scene: str) -> Deferred:
        tokens.append(current_call().completion_token)
        return Deferred(reason="rendering")

    def make_app() -> App:
        model = ScriptedModel(tool_reply(call("call-1234567", "render", scene="key 1234567")), "done")
        return an_app(tmp_path, Agent(name="agent", model=model, tools=[render]), EAGER)

    async with make_app() as app:
        with pytest.raises(RunWaiting):
            await app.run("agent", "go", run_id="r")
        assert app.store is not None
        stored = await app.store.load("r")
        everything = b"".join([stored.record.progress, *(entry.body for entry in stored.entries)])
        assert tokens[0].partition("~")[2].encode() not in everything
        assert b"key [redacted]" in everything
        assert b"key 1234567" not in everything
        for forged in ("[redacted]", "", "r" * 31, "é", "[redacted]" * 4):
            with pytest.raises(NotWaiting):
                await app.complete_call(f"r~{forged}", "forged")
        await app.complete_call(tokens[0], "the file")
    async with make_app() as again:
        assert (await again.resume("r")).output == "done"
        assert [event.decision.kind async for event in again.events("r") if isinstance(event, CallDecided)] == ["value"]


async def test_a_signal_has_no_fields_that_stay_readable(tmp_path: Path) -> None:
    names = ("turn_id", "joined", "digest", "recent_turns", "kind", "at", "topic")
    model = ScriptedModel(tool_reply(call("1", "wait_for", name="go")), "done")
    async with an_app(tmp_path, Agent(name="agent", model=model, tools=[wait_for])) as app:
        with pytest.raises(RunWaiting):
            await app.run("agent", "go", run_id="r")
        await app.signal("r", "go", dict.fromkeys(names, "sk-123"))
        assert app.store is not None
        [mail] = (await app.store.load("r", after=END)).mail
        assert b"sk-123" not in mail.body


async def test_no_log_line_has_the_secret_of_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        raise ModelUnavailable("401 for sk-123")

    retry = Retry(max_tries=2, initial_delay=timedelta(0))
    agent = Agent(name="agent", model=model, retry=retry)
    with caplog.at_level(logging.INFO, "holdfast"):
        async with an_app(tmp_path, agent) as app:
            await app.submit("agent", "go", run_id="r")
            await app.recover()
    lines = [line for line in caplog.records if "[redacted]" in line.getMessage()]
    assert {line.name for line in lines} == {"holdfast.retry", "holdfast.lifecycle"}
    assert not any("sk-123" in str(vars(line)) for line in lines)


@pytest.mark.parametrize("call_id", ["c1", "at", "digest"])
async def test_the_traceback_of_a_tool_is_stored_redacted_and_the_model_does_not_read_it(
    tmp_path: Path, call_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A captured log with half a surrogate pair cannot be sent to the process that reports the tests.
    monkeypatch.setattr(logging.getLogger("holdfast.tools"), "disabled", True)

    @tool
    async def deploy() -> str:
        raise ValueError("refused: sk-123 \ud800")

    model = ScriptedModel(tool_reply(call(call_id, "deploy")), "done")
    async with an_app(tmp_path, Agent(name="agent", model=model, tools=[deploy])) as app:
        await app.run("agent", "go", run_id="r")
        assert app.store is not None
        stored = await app.store.load("r")
        assert b"sk-123" not in b"".join(entry.body for entry in stored.entries)
        trace = read_traces(stored.entries)[call_id]
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: refused: [redacted] ?")
    assert "in deploy" in trace
    assert "holdfast/core" not in trace
    assert "Traceback" not in str(model.requests)


@pytest.mark.parametrize("name", ["id", "name", "kind", "topic"])
async def test_a_signal_is_redacted_whatever_its_keys_are_called(tmp_path: Path, name: str) -> None:
    async with an_app(tmp_path) as app:
        await app.submit("agent", "go", run_id="r")
        await app.signal("r", "paid", {"tool_calls": [{name: "sk-123"}], name: "sk-456"})
        assert app.store is not None
        [mail] = (await app.store.load("r", after=END)).mail
        assert b"sk-" not in mail.body


async def test_a_fork_is_found_by_its_origin(tmp_path: Path) -> None:
    async with an_app(tmp_path) as app:
        await app.run("agent", PROMPT, run_id="r")
        fork = await app.fork("r", 1)
        assert [run.run_id for run in (await app.list(forked_from="r")).runs] == [fork]


@pytest.mark.parametrize("name", ["number", "error", "input", "labels", "usage", "attempts", "message", "status"])
async def test_a_name_of_a_redactor_that_is_also_a_field_of_holdfast_leaves_runs_readable(
    tmp_path: Path, name: str
) -> None:
    @tool
    def fail(error: str) -> str:
        raise ValueError("broken")

    model = ScriptedModel(tool_reply(call("c1", "fail", error="sk-1"), usage=Usage(input_tokens=7)), "first", "second")
    settings = CheckpointSettings(redact=Redactor(names=[name], patterns=[r"sk-\d+"]))

    def make_app() -> App:
        agent = Agent(name="agent", model=model, tools=[fail])
        return App([agent], f"sqlite:{tmp_path}/runs.db", worker=False, checkpoint=settings)

    for number, output in enumerate(["first", "second"], start=1):
        async with make_app() as app:
            turn = await app.conversation("agent", "k").send(f"say {number} sk-2")
            assert turn.output == output
    async with make_app() as app:
        assert [turn.status for turn in await app.conversation("agent", "k").history()] == ["done", "done"]
        run = await app.get("chat:agent:k")
        assert (run.steps, run.usage.input_tokens) == (3, 7)
    assert b"sk-" not in (tmp_path / "runs.db").read_bytes()


async def test_no_key_of_user_data_is_stored_with_a_secret_and_calls_find_their_results(tmp_path: Path) -> None:
    @tool
    async def look(where: dict[str, str]) -> dict[str, str]:
        return {"sk-11": "found", "sk-12": "too"}

    model = ScriptedModel(
        tool_reply(call("call-sk-1", "look", where={"sk-13": "x"})),
        tool_reply(call("2", "wait_for", name="go")),
        "done",
    )
    agent = Agent(name="agent", model=model, tools=[look, wait_for])
    async with an_app(tmp_path, agent) as app:
        with pytest.raises(RunWaiting):
            await app.run(
                "agent", [{"sk-14": "part"}], run_id="r", inputs={"sk-15": 1}, labels={"sk-16": "x", "b": "y"}
            )
    async with an_app(tmp_path, agent) as app:
        assert [run.run_id for run in (await app.list(labels={"[redacted]": "x", "b": "y"})).runs] == ["r"]
        await app.signal("r", "go", {"sk-17": {"sk-18": 1}})
        assert (await app.resume("r")).output == "done"
        assert app.store is not None
        stored = await app.store.load("r")
    everything = b"".join([stored.record.progress, stored.record.info, *(entry.body for entry in stored.entries)])
    assert b"sk-" not in everything.replace(b"call-sk-1", b"")
    result = next(message for message in model.requests[-1] if isinstance(message, ToolResult))
    assert result.content == {"[redacted]": "found", "[redacted b]": "too"}
    assert b"sk-" not in (tmp_path / "runs.db").read_bytes().replace(b"call-sk-1", b"")
