"""What each model's run has to do with the checkpoint: order of writes and removals, and what is passed on."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fanout.test_fanout import NO_SIGNALS, fanout, held, look, runs_left, stop_when_reached, texts
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, Bounds, Phase, Reply, Usage, tool
from holdfast.checkpoint import StoreCheckpoints
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.core.errors import DefinitionError, RunParked
from holdfast.core.run.info import RunInfo
from holdfast.fanout import Fanout, FanoutError, FanoutSettings, ModelResponse, load
from holdfast.fanout.cells import make_cell_run_id
from holdfast.fanout.progress import to_milliseconds
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore


class WatchedRemovals(ProbeStore):
    """A store that looks at the checkpoint before it removes a run."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(MemoryStore())
        self._checkpoint = checkpoint
        #: The statuses in the checkpoint before each removal, and the run.
        self.removals: list[tuple[list[str], str]] = []

    async def remove(self, run_id: str, *, claim: Any = None) -> None:
        kept = load(self._checkpoint)
        self.removals.append(([each.status for each in kept.snapshots] if kept else [], run_id))
        await super().remove(run_id, claim=claim)


async def test_a_run_is_removed_when_the_checkpoint_has_its_response(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    store = WatchedRemovals(path)
    models = {"a": ScriptedModel("x"), "b": ScriptedModel(RuntimeError("no"))}
    settings = replace(NO_SIGNALS, max_concurrency=1, fanout_id="f")
    await Fanout("why?", models, store=store, checkpoint=path, settings=settings).run()
    a, b = (make_cell_run_id(model, "f") for model in models)
    # The run of the failed model stays until the end: `retry_failed` may resume it.
    finished = ["completed", "failed"]
    assert store.removals == [(["completed", "interrupted"], a), (finished, a), (finished, b)]


class LostCheckpoint:
    """A fan-out of one model whose checkpoint cannot be written any more when the model answers for the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "checkpoint.json"
        self.model = ScriptedModel(
            tool_reply(call("1", "edit_file", path="a.txt", old="hello", new="bye")), self._answer
        )
        self.left: list[str] = []
        (folder / "work").mkdir()
        (folder / "work" / "a.txt").write_text("hello")

    async def _answer(self, messages: Sequence[Any]) -> Reply:
        # The writer thread has yet to store the first step. After that it has nothing to do.
        while (kept := load(self.path)) is None or not kept.snapshots[0].tool_calls:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        shutil.copy(self.path, self.folder / "copy.json")
        self.path.unlink()
        (self.path / "in the way").mkdir(parents=True)
        return Reply(text="done", usage=Usage(input_tokens=7))

    def _inspect(self, responses: Sequence[ModelResponse]) -> None:
        self.left = asyncio.run(runs_left(self.folder))
        raise RuntimeError("the responses could not be stored")

    async def run(self) -> None:
        with pytest.raises(RuntimeError, match="could not be stored"):
            await fanout(
                self.folder, {"a": self.model}, workspace=self.folder / "work", on_complete=self._inspect
            ).run()
        shutil.rmtree(self.path)
        shutil.move(self.folder / "copy.json", self.path)

    async def resume(self) -> ModelResponse:
        (response,) = await fanout(self.folder, {"a": self.model}, workspace=self.folder / "work").run()
        return response


async def test_a_response_that_the_checkpoint_lacks_is_in_the_store(tmp_path: Path) -> None:
    lost = LostCheckpoint(tmp_path)
    await lost.run()
    assert len(lost.left) == 1
    response = await lost.resume()
    assert (response.text, response.input_tokens, response.tool_calls) == ("done", 7, {"edit_file": 1})
    assert [each.content for each in response.proposed_writes] == ["bye"]
    assert len(lost.model.requests) == 2, "it was not asked again"
    assert await runs_left(tmp_path) == []


async def test_a_finished_model_whose_file_was_changed_meanwhile_has_failed(tmp_path: Path) -> None:
    lost = LostCheckpoint(tmp_path)
    await lost.run()
    (tmp_path / "work" / "a.txt").write_text("changed by somebody else")
    response = await lost.resume()
    assert "WorkspaceChanged" in (response.error or "")


async def test_a_run_that_cannot_be_removed_does_not_lose_the_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProbeStore(MemoryStore())
    store.fail("remove", StoreUnavailable("the database does not answer"))
    fan = Fanout("why?", {"a": ScriptedModel("x")}, store=store, checkpoint=tmp_path / "c.json", settings=NO_SIGNALS)
    assert texts(await fan.run()) == {"a": "x"}
    assert "does not answer" in caplog.text
    assert not (tmp_path / "c.json").exists()


async def test_nothing_is_asked_before_the_checkpoint_is_written(tmp_path: Path) -> None:
    model = ScriptedModel("x")
    # The name of the lock file is just short enough, that of a temporary file is too long.
    fan = Fanout("why?", {"a": model}, store=MemoryStore(), checkpoint=tmp_path / ("c" * 245), settings=NO_SIGNALS)
    with pytest.raises(FanoutError, match="no model was asked"):
        await fan.run()
    assert model.requests == []
    assert list(tmp_path.iterdir()) == []


async def test_a_checkpoint_in_the_store_is_discarded_with_its_runs(tmp_path: Path) -> None:
    model = held()

    def in_store() -> Fanout:
        return Fanout(
            "why?", {"held": model}, tools=[look], store=f"sqlite:{tmp_path / 'runs.db'}", settings=NO_SIGNALS
        )

    await stop_when_reached(in_store(), model)
    model.hold.set()
    assert texts(await in_store().run(resume=False)) == {"held": "done"}
    assert len(model.script.requests) == 3, "it was begun anew"
    assert await runs_left(tmp_path) == []


async def test_runs_have_the_ids_and_labels_of_their_fanout(tmp_path: Path) -> None:
    model = held()
    await stop_when_reached(fanout(tmp_path, {"p:a b/c": model}, fanout_id="mine"), model)
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    (record,) = [record async for record in store.list_runs()]
    await store.close()
    assert record.run_id == make_cell_run_id("p:a b/c", "mine")
    assert record.run_id.startswith("mine:p-a-b-c-")
    assert record.agent_name == "fanout/p:a b/c"
    assert make_cell_run_id("a b", "f") != make_cell_run_id("a/b", "f")
    kept = load(tmp_path / "checkpoint.json")
    assert kept is not None
    assert kept.fanout_id == "mine"


async def test_without_an_id_each_fanout_in_a_file_has_its_own_and_one_in_the_store_a_stable_one(
    tmp_path: Path,
) -> None:
    ids = []
    for _ in range(2):
        model = held()
        await stop_when_reached(fanout(tmp_path, {"a": model}), model)
        kept = load(tmp_path / "checkpoint.json")
        assert kept is not None
        ids.append(kept.fanout_id)
        (tmp_path / "checkpoint.json").unlink()
    assert ids[0] != ids[1]
    one, other, another = (
        Fanout(prompt, {"a": ScriptedModel("x")}, store=MemoryStore()) for prompt in ("why?", "why?", "who?")
    )
    assert one._new_id() == other._new_id() != another._new_id()


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_event(self, info: RunInfo, event: Any) -> None:
        self.heard.append(f"{info.labels['cell']} {event.type}")

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self.heard.append(f"{info.labels['cell']} output {output}")

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self.heard.append(f"{info.labels['cell']} error {error}")


EVENTS = ("status", "step_started", "reply", "tool_call", "tool_result", "step_started", "reply")


async def test_the_listener_hears_everything(tmp_path: Path) -> None:
    listener = Listener()
    models = {"a": ScriptedModel(tool_reply(call("1", "look")), "x"), "b": ScriptedModel(RuntimeError("no"))}
    await fanout(tmp_path, models, listener=listener, max_concurrency=1).run()
    assert listener.heard == [
        *(f"a {kind}" for kind in EVENTS),
        "a output x",
        "b status",
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
    assert "nothing is left" in (response.error or "")


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
    assert kept.snapshots[0].to_response() == response


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
    assert "phases or compaction" in (response.error or "")


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
    await checkpoints.cancel(make_cell_run_id("a", "f"))
    await checkpoints.close()
    await store.close()
    (response,) = await fanout(tmp_path, {"a": model}, fanout_id="f").run()
    assert "cancelled" in (response.error or "")
    assert (response.interrupted, response.text, response.input_tokens) == (False, "let me see", 7)
    assert len(model.script.requests) == 1
    assert await runs_left(tmp_path) == []


def test_latency_is_in_milliseconds() -> None:
    assert to_milliseconds(timedelta(seconds=2, microseconds=500)) == 2000.5


def test_one_of_each_is_allowed(tmp_path: Path) -> None:
    fanout(tmp_path, {"a": ScriptedModel("x")}, max_concurrency=1, max_per_provider=1)
    assert FanoutSettings().verbose is False
