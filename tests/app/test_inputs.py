"""The input of a run: structured data and content parts reach the agent, survive a crash, and identify the request."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.core.test_custom_loop import LineLoop
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, CheckpointSettings, Phase, User, WorkerSettings, current_call, tool
from holdfast.checkpoint.errors import RunConflict
from holdfast.checkpoint.store import get_record
from holdfast.core.errors import DefinitionError, Shutdown
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import PhaseOutput
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.stores.memory import MemoryStore

INPUTS = {"customer": {"id": 7, "tags": ["new"]}, "note": "café"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
NO_WORKER = WorkerSettings(take_runs=False)


@tool(effect="pure")
def read_inputs() -> Any:
    """Return the inputs of the run."""
    return {name: value for name, value in current_call().inputs.items() if name != "prompt"}


def reading(*turns: Any) -> Agent:
    return Agent(name="a", model=ScriptedModel(tool_reply(call("1", "read_inputs")), *turns), tools=[read_inputs])


async def test_inputs_reach_tools_and_the_source_of_an_agent() -> None:
    seen: list[RunInfo] = []

    class Source:
        name = "a"

        async def build(self, info: RunInfo) -> Agent:
            seen.append(info)
            return reading("done")

    source = Source()
    async with App([source], MemoryStore()) as app:
        result = await app.run(source, "go", inputs=INPUTS)
    assert result.messages[2].content == INPUTS
    assert seen[0].inputs == INPUTS


def test_run_sync_takes_inputs() -> None:
    assert App([reading("done")], None).run_sync("a", "go", inputs=INPUTS).messages[2].content == INPUTS


async def test_a_submitted_run_has_its_inputs_in_another_process(durable_store_url: str) -> None:
    async with App([reading("done")], durable_store_url, worker=NO_WORKER) as app:
        run_id = await app.submit("a", "go", inputs=INPUTS)
    async with App([reading("done")], durable_store_url) as app:
        assert (await app.result(run_id)).messages[2].content == INPUTS


async def test_a_resumed_run_has_its_inputs() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=ScriptedModel(Shutdown("now"))), "go", run_id="r", inputs=INPUTS)
    result = await SimulatedHost(host.inner).resume(reading("done"), "r")
    assert result.messages[2].content == INPUTS


async def test_phases_use_inputs_in_templates_and_functions() -> None:
    def ask(info: RunInfo, finished: Any) -> str:
        return f"{info.inputs['note']} after {finished[0].output}"

    model = ScriptedModel("drafted")
    phases = [Phase(name="draft", prompt="$prompt for $customer: $note"), Phase(name="end", prompt=ask)]
    async with App([Agent(name="a", model=model, phases=phases)], None) as app:
        await app.run("a", "Write", inputs=INPUTS)
    prompts = [request[0] for request in model.requests]
    assert prompts == [User('Write for {"id":7,"tags":["new"]}: café'), User("café after drafted")]


def test_the_output_of_a_phase_comes_before_an_input_of_its_name() -> None:
    info = RunInfo.create(Agent(name="a", model=ScriptedModel()), "go", inputs={"draft": "input", "other": 1})
    finished = [PhaseOutput(name="draft", output="output", steps=1)]
    assert Phase(name="end", prompt="$draft $other $prompt").render(info, finished) == "output 1 go"


@pytest.mark.parametrize("inputs", [{**INPUTS, "note": "other"}, {"note": "café"}, {**INPUTS, "more": None}, None])
async def test_the_same_run_id_with_other_inputs_is_a_conflict(inputs: Any, durable_store_url: str) -> None:
    async with App([reading("done")], durable_store_url) as app:
        await app.submit("a", "go", run_id="r", inputs=INPUTS)
        with pytest.raises(RunConflict):
            await app.submit("a", "go", run_id="r", inputs=inputs)
        with pytest.raises(RunConflict):
            await app.run("a", "go", run_id="r", inputs=inputs)
        again = dict(reversed(INPUTS.items()))
        assert await app.submit("a", "go", run_id="r", inputs=again) == "r"
        assert (await app.run("a", "go", run_id="r", inputs=again)).output == "done"


async def test_inputs_that_differ_only_in_their_secrets_are_the_same_request() -> None:
    settings = CheckpointSettings(redact=Redactor(patterns=["sk-[0-9]+"]))
    store = MemoryStore()
    async with App([reading("done")], store, checkpoint=settings) as app:
        await app.submit("a", "go", run_id="r", inputs={"token": "t1", "text": "with sk-1"})
        assert await app.submit("a", "go", run_id="r", inputs={"token": "t2", "text": "with sk-2"}) == "r"
        with pytest.raises(RunConflict):
            await app.submit("a", "go", run_id="r", inputs={"token": "t1", "text": "without"})
        assert (await app.result("r")).messages[2].content == {"token": REDACTED, "text": f"with {REDACTED}"}


@pytest.mark.parametrize(
    "inputs", [["a"], "text", {1: 2}, {"a": object()}, {"a": b"raw"}, {"a": float("nan")}, {"prompt": "x"}]
)
async def test_inputs_without_a_json_form_are_refused_at_once(inputs: Any) -> None:
    agent = reading("done")
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match="input"):
            await app.run(agent, "go", inputs=inputs)
        with pytest.raises(DefinitionError, match="input"):
            await app.submit(agent, "go", inputs=inputs)


async def test_the_native_loop_gets_content_parts_as_they_were_given(tmp_path: Path) -> None:
    url, parts, model = f"sqlite:{tmp_path / 'runs.db'}", ["What is this?", PICTURE], ScriptedModel("a dot")
    async with App([Agent(name="a", model=model)], url, worker=NO_WORKER) as app:
        await app.submit("a", parts, run_id="r")
        assert await app.submit("a", parts, run_id="r") == "r"
        for other in (["What is this?"], "What is this? [image_url]", [PICTURE, "What is this?"]):
            with pytest.raises(RunConflict):
                await app.submit("a", other, run_id="r")
    async with App([Agent(name="a", model=model)], url) as app:
        result = await app.result("r")
        assert app.store is not None
        record = await get_record(app.store, "r")
    assert model.requests == [(User("What is this? [image_url]", parts),)]
    assert result.messages[0].content == ("What is this?", PICTURE)
    assert summarize_run(record).prompt == "What is this? [image_url]"
    assert b"base64" not in record.info, "a listing does not load pictures"


async def test_content_parts_take_the_place_of_the_prompt_in_a_phase() -> None:
    model = ScriptedModel("done")
    phases = [
        Phase(name="one"),
        Phase(name="two", prompt="First $one, then: $prompt!"),
        Phase(name="three", prompt="x"),
    ]
    async with App([Agent(name="a", model=model, phases=phases)], None) as app:
        await app.run("a", ["Look", PICTURE])
    contents = [request[0].content for request in model.requests if isinstance(request[0], User)]
    assert contents == [("Look", PICTURE), ("First done, then: ", "Look", PICTURE, "!"), ()]


@pytest.mark.parametrize(
    "prompt", [None, 7, [], b"raw", {"text": "go"}, [object()], ["go", b"raw"], [{"data": b"raw"}]]
)
async def test_a_prompt_that_cannot_be_stored_is_refused_at_once(prompt: Any) -> None:
    agent = Agent(name="a", model=ScriptedModel("never"))
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match=r"prompt|content part"):
            await app.run(agent, prompt)
        with pytest.raises(DefinitionError, match=r"prompt|content part"):
            await app.submit(agent, prompt)


async def test_a_loop_that_accepts_text_only_refuses_content_parts() -> None:
    agent = Agent(name="a", loop=LineLoop())
    async with App([agent], None) as app:
        with pytest.raises(DefinitionError, match="agent a accepts text only"):
            await app.run(agent, ["Look", PICTURE])


def test_a_prompt_that_is_neither_text_nor_parts_is_empty() -> None:
    odd: Any = 5
    assert RunInfo(run_id="r", agent_name="a", prompt=odd).prompt == ""


def test_the_digest_of_a_request_has_the_prompt_and_the_inputs() -> None:
    info = RunInfo(run_id="r", agent_name="a", prompt="go", inputs={"a": 1})
    digests = {
        each.summarize().request_digest
        for each in (
            info,
            msgspec.structs.replace(info, run_id="s", caller_id="c"),
            msgspec.structs.replace(info, prompt=["go"]),
            msgspec.structs.replace(info, inputs={"a": 2}),
        )
    }
    assert len(digests) == 3
