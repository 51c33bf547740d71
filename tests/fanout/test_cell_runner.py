"""The cells of a fan-out: ids, listener, bounds, proposed writes, and the checkpoint file beside the runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fanout.test_fanout import NO_SIGNALS, fanout, held, look, stop_when_reached, texts
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, Bounds, Phase, Reply, Usage, tool
from holdfast.checkpoint import StoreCheckpoints
from holdfast.checkpoint.claims import cancel_run
from holdfast.checkpoint.store import iter_runs
from holdfast.core.errors import DefinitionError, RunParked
from holdfast.core.run.info import RunInfo
from holdfast.fanout import Fanout, FanoutSettings, load, read_responses
from holdfast.fanout.cells import make_cell_run_id
from holdfast.fanout.responses import to_milliseconds
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


async def test_a_checkpoint_file_that_cannot_be_written_fails_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel(tool_reply(call("1", "look")), "done")

    async def block(messages: Sequence[Any]) -> Reply:
        (tmp_path / "checkpoint.json" / "in the way").mkdir(parents=True)
        return tool_reply(call("1", "look"))

    blocking = ScriptedModel(block, "x")
    settings = replace(NO_SIGNALS, max_concurrency=1)
    path = tmp_path / "checkpoint.json"
    store = MemoryStore()
    fan = Fanout("why?", {"a": blocking, "b": model}, tools=[look], store=store, checkpoint=path, settings=settings)
    with pytest.raises(OSError, match=r"checkpoint\.json"):  # the models have answered; the file cannot be removed
        await fan.run()
    assert "the checkpoint file was not written" in caplog.text
    (path / "in the way").rmdir()
    path.rmdir()
    assert texts(await fan.run()) == {"a": "x", "b": "done"}
    assert (len(blocking.requests), len(model.requests)) == (2, 2)


async def test_the_proposed_writes_of_a_finished_model_stay_when_its_file_changes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    editor = ScriptedModel(tool_reply(call("1", "edit_file", path="a.txt", old="hello", new="bye")), "done")
    waits = held()
    fan = Fanout(
        "why?",
        {"editor": editor, "waits": waits},
        tools=[look],
        workspace=tmp_path,
        store=f"sqlite:{tmp_path / 'runs.db'}",
        settings=NO_SIGNALS,
    )
    task = asyncio.create_task(fan.run())
    await waits.reached.wait()
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    while not (await read_responses(store, fan.run_id))[0].proposed_writes:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await store.close()
    await fan.stop(timedelta(0))
    responses = await task
    (tmp_path / "a.txt").write_text("applied meanwhile")
    waits.hold.set()
    for each in (responses, await fan.run()):
        assert [write.content for write in each[0].proposed_writes] == ["bye"]


async def test_the_run_of_a_cell_is_a_child_of_the_run_of_the_fanout(tmp_path: Path) -> None:
    model = held()
    await stop_when_reached(fanout(tmp_path, {"p:a b/c": model}, fanout_id="mine"), model)
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    parent, child = [record async for record in iter_runs(store)]
    await store.close()
    assert (parent.run_id, parent.agent_name, parent.parent_run_id) == ("mine", "fanout/mine", None)
    assert (child.run_id, child.parent_run_id) == (make_cell_run_id("mine", "p:a b/c"), "mine")
    assert child.agent_name == "fanout/mine/p:a b/c"


def test_without_an_id_it_is_made_of_the_prompt_and_the_models() -> None:
    one, other, another = (
        Fanout(prompt, {"a": ScriptedModel("x")}, store=MemoryStore()) for prompt in ("why?", "why?", "who?")
    )
    assert one.run_id == other.run_id != another.run_id
    assert Fanout("why?", {"b": ScriptedModel("x")}, store=MemoryStore()).run_id != one.run_id


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_event(self, info: RunInfo, event: Any) -> None:
        self.heard.append(f"{info.agent_name.rpartition('/')[2]} {event.type}")

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self.heard.append(f"{info.agent_name.rpartition('/')[2]} output {output}")

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self.heard.append(f"{info.agent_name.rpartition('/')[2]} error {error}")


EVENTS = ("step_started", "reply", "tool_call", "tool_result", "step_started", "reply")


async def test_the_listener_hears_everything(tmp_path: Path) -> None:
    listener = Listener()
    models = {"a": ScriptedModel(tool_reply(call("1", "look")), "x"), "b": ScriptedModel(RuntimeError("no"))}
    await fanout(tmp_path, models, listener=listener, max_concurrency=1).run()
    cells = [line for line in listener.heard if not line.startswith("fanout-")]
    assert cells == [
        *(f"a {kind}" for kind in EVENTS),
        "a output x",
        "b step_started",
        "b error no",
    ]


class NoMoney:
    async def check(self, info: RunInfo, state: Any) -> None:
        raise RunParked("budget", "nothing is left")

    async def commit(self, info: RunInfo, state: Any) -> None: ...


async def test_bounds_and_budget_hold_for_every_model(tmp_path: Path) -> None:
    endless = ScriptedModel(*(tool_reply(call("1", "look")) for _ in range(5)))
    (response,) = await fanout(tmp_path, {"a": endless}, bounds=Bounds(max_steps=2)).run()
    assert (len(endless.requests), response.ok) == (2, False)
    model = ScriptedModel("x")
    (response,) = await fanout(tmp_path, {"b": model}, budget=NoMoney()).run()
    assert (model.requests, response.interrupted) == ([], True)
    assert "nothing is left" in response.error


async def test_the_response_of_a_stopped_model_has_the_text_of_its_unfinished_step(tmp_path: Path) -> None:
    reached = asyncio.Event()

    @tool(effect="pure")
    async def hang() -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(tool_reply(call("1", "look"), text="first"), tool_reply(call("1", "hang"), text="second"))
    fan = fanout(tmp_path, {"a": model}, tools=[look, hang])
    task = asyncio.create_task(fan.run())
    await reached.wait()
    await fan.stop(timedelta(0))
    (response,) = await task
    assert (response.interrupted, response.text) == (True, "second")
    kept = load(tmp_path / "checkpoint.json")
    assert kept is not None
    assert kept.responses[0].to_response() == response


async def test_a_checkpoint_file_may_be_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    checkpoint = tmp_path / "one" / "two" / "c.json"
    fan = Fanout("why?", {"a": ScriptedModel("x")}, store=MemoryStore(), checkpoint=checkpoint, settings=NO_SIGNALS)
    assert texts(await fan.run()) == {"a": "x"}


async def test_the_text_of_a_failed_model_is_its_last_one(tmp_path: Path) -> None:
    used = Usage(input_tokens=3, output_tokens=2, reasoning_tokens=1, cost_usd=0.5)
    broken = ScriptedModel(
        tool_reply(call("1", "look"), text="let me see", usage=used), tool_reply(call("2", "look"), usage=used),
        RuntimeError("no luck"),
    )  # fmt: skip
    (response,) = await fanout(tmp_path, {"a": broken}).run()
    assert (response.text, response.error) == ("let me see", "RuntimeError: no luck")
    assert (response.input_tokens, response.output_tokens, response.reasoning_tokens) == (6, 4, 2)
    assert (response.cost_usd, response.tool_calls) == (1.0, {"look": 2})


class LateAgent:
    """A source whose agent is known only when its run begins."""

    name = "late"

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def build(self, info: RunInfo) -> Agent:
        return self._agent


async def test_an_agent_whose_writes_cannot_be_restored_is_refused_when_it_is_built(tmp_path: Path) -> None:
    phases = Agent(name="late", model=ScriptedModel("x"), phases=[Phase(name="one")])
    (response,) = await fanout(tmp_path, [LateAgent(phases)], workspace=tmp_path).run()
    assert "phases or compaction" in response.error


async def keep_all(messages: Sequence[Any]) -> Sequence[Any]:
    return messages


@pytest.mark.parametrize(
    ("models", "options", "why"),
    [
        ([SimpleNamespace(name="", build=None)], {}, "has no name"),
        ([SimpleNamespace(name=7, build=None)], {}, "has no name"),
        (
            [Agent(name="a", model=ScriptedModel("x"), compact=keep_all)],
            {"workspace": "."},
            "phases or compaction",
        ),
        ({"a": ScriptedModel("x")}, {"max_per_provider": 0}, "at least 1"),
        *(
            ({"a": ScriptedModel("x")}, {name: value}, name)
            for name, value in {
                "fanout_id": 7,
                "bounds": 7,
                "shutdown_timeout": 7,
                "retry_failed": "no",
                "verbose": 1,
                "handle_signals": None,
                "max_concurrency": True,
                "max_per_provider": {"p": "4"},
            }.items()
        ),
    ],
)
def test_more_nonsense_is_refused(tmp_path: Path, models: Any, options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        fanout(tmp_path, models, **options)


async def test_a_model_whose_run_was_cancelled_has_failed(tmp_path: Path) -> None:
    model = held()
    await stop_when_reached(fanout(tmp_path, {"a": model}, fanout_id="f"), model)
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    checkpoints = StoreCheckpoints(store)
    await cancel_run(checkpoints.claims, make_cell_run_id("f", "a"))
    await checkpoints.close()
    await store.close()
    (response,) = await fanout(tmp_path, {"a": model}, fanout_id="f").run()
    assert "cancelled" in response.error
    assert (response.interrupted, response.text, response.input_tokens) == (False, "let me see", 7)
    assert len(model.script.requests) == 1


def test_latency_is_in_milliseconds() -> None:
    assert to_milliseconds(timedelta(seconds=2, microseconds=1500)) == 2002


def test_one_of_each_is_allowed(tmp_path: Path) -> None:
    fanout(tmp_path, {"a": ScriptedModel("x")}, max_concurrency=1, max_per_provider=1)
    assert FanoutSettings().verbose is False
