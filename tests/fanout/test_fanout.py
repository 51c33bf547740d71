"""One prompt to many models in one process: order, bounds, failures, stops and resumes."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Phase, Reply, System, Usage, User, tool
from holdfast.checkpoint.errors import RunConflict
from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core.agents.retry import Retry
from holdfast.core.errors import DefinitionError, InvalidRunId, ModelUnavailable
from holdfast.fanout import (
    Fanout,
    FanoutError,
    FanoutSettings,
    ModelResponse,
    ResponseSnapshot,
    Variant,
    Workspace,
    load,
    read_responses,
)
from holdfast.fanout.cells import make_cell_run_id
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.manual_clock import ManualClock


@tool(effect="pure")
def look() -> str:
    return "seen"


def texts(responses: Sequence[ModelResponse]) -> dict[str, str | None]:
    return {response.model_id: response.error or response.text for response in responses}


#: The test runner handles SIGINT.
NO_SIGNALS = FanoutSettings(handle_signals=False)


def fanout(at: Path, models: Any, prompt: str = "why?", **options: Any) -> Fanout:
    """A fan-out in this folder; `options` are parameters of `Fanout` or of its settings."""
    settings = {name: options.pop(name) for name in list(options) if name in FanoutSettings.__slots__}
    return Fanout(
        prompt,
        models,
        store=f"sqlite:{at / 'runs.db'}",
        checkpoint=at / "checkpoint.json",
        settings=replace(NO_SIGNALS, **settings),
        **{"tools": [look], **options},
    )


async def list_statuses(folder: Path) -> list[RunStatus]:
    """The statuses of the runs in the store: of the fan-out first, then of its cells."""
    store = SqliteStore(folder / "runs.db")
    await store.open()
    try:
        return [record.status async for record in iter_runs(store)]
    finally:
        await store.close()


async def test_responses_come_in_the_order_of_the_models_and_one_failure_holds_nobody_up(tmp_path: Path) -> None:
    models = {
        "slow": ScriptedModel(tool_reply(call("1", "look"), usage=Usage(input_tokens=5, cost_usd=0.5)), "late"),
        "broken": ScriptedModel(RuntimeError("no luck")),
        "quick": ScriptedModel("soon"),
    }
    fan = fanout(tmp_path, models)
    responses = await fan.run()
    assert texts(responses) == {"slow": "late", "broken": "RuntimeError: no luck", "quick": "soon"}
    assert list(texts(responses)) == list(models)
    assert (responses[0].tool_calls, responses[0].input_tokens, responses[0].cost_usd) == ({"look": 1}, 5, 0.5)
    assert load(tmp_path / "checkpoint.json") is None
    assert sorted(await list_statuses(tmp_path)) == ["done", "done", "done", "failed"]
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    assert await read_responses(store, fan.run_id) == responses
    assert {child.run_id async for child in iter_runs(store, RunFilter(parent_run_id=fan.run_id))} == {
        make_cell_run_id(fan.run_id, model) for model in models
    }
    await store.close()


async def test_the_same_fanout_again_returns_the_recorded_responses(tmp_path: Path) -> None:
    model = ScriptedModel("x")
    for resume, requests in ((True, 1), (True, 1), (False, 2)):
        assert texts(await fanout(tmp_path, {"a": model}).run(resume=resume)) == {"a": "x"}
        assert (len(model.requests), len(await list_statuses(tmp_path))) == (requests, 2)


async def test_a_fanout_that_starts_over_has_no_pick() -> None:
    fan = Fanout("why?", {"a": ScriptedModel("x")})
    async with App(fan.agents, MemoryStore()) as app:
        await fan.run(app)
        await app.pick(fan.run_id, "a")
        await fan.run(app)
        assert (await app.get_pick(fan.run_id)) is not None
        await fan.run(app, resume=False)
        assert (await app.get_pick(fan.run_id)) is None


async def test_variants_are_lenses_on_every_model(tmp_path: Path) -> None:
    async def parrot(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        return Reply(text=" | ".join(each.text for each in messages if isinstance(each, System | User)))

    variants = [Variant(name="plain"), Variant(name="short", instructions="Be brief.", prompt="In a word:")]
    agent = Agent(name="b", model=parrot, instructions="I am b.")
    responses = await fanout(tmp_path, {"p:a": parrot, "b": agent}, variants=variants, instructions="Be nice.").run()
    assert texts(responses) == {
        "p:a~plain": "Be nice. | why?",
        "p:a~short": "Be brief. | In a word:\n\nwhy?",
        "b~plain": "I am b. | why?",
        "b~short": "Be brief. | In a word:\n\nwhy?",
    }


async def test_one_slow_provider_does_not_hold_the_others(tmp_path: Path) -> None:
    others_done = asyncio.Event()
    answered: list[str] = []

    def model(name: str) -> Any:
        async def ask(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
            if name.startswith("slow"):
                await others_done.wait()
            answered.append(name)
            if len(answered) == 6:
                others_done.set()
            return Reply(text=name)

        return ask

    names = [f"slow:{number}" for number in range(8)] + [f"fast:{number}" for number in range(6)]
    responses = await fanout(
        tmp_path, {name: model(name) for name in names}, max_concurrency=3, max_per_provider=2
    ).run()
    assert [response.text for response in responses] == names
    assert all(name.startswith("fast") for name in answered[:6])


async def test_no_more_run_at_once_than_is_allowed(tmp_path: Path) -> None:
    running: list[str] = []
    most: dict[str, int] = {}

    def model(name: str) -> Any:
        async def ask(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
            running.append(name)
            for what in ("", name[0]):
                most[what] = max(most.get(what, 0), sum(each.startswith(what) for each in running))
            for _ in range(50):
                await asyncio.sleep(0)
            running.remove(name)
            return Reply(text="")

        return ask

    names = [f"{provider}:{number}" for provider in "abc" for number in range(6)]
    models = {name: model(name) for name in names}
    await fanout(tmp_path, models, max_concurrency=4, max_per_provider={"a": 1, "b": 2}).run()
    assert most[""] <= 4
    assert (most["a"], most["b"] <= 2) == (1, True)
    assert most[""] > 1


class Stoppable:
    """A model that answers at once until its fan-out is stopped, and continues its script the next time."""

    def __init__(self, *turns: Any) -> None:
        self.script = ScriptedModel(*turns)
        self.reached = asyncio.Event()
        self.hold = asyncio.Event()

    async def __call__(self, messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        if any(isinstance(message, Reply) for message in messages) and not self.hold.is_set():
            self.reached.set()
            await self.hold.wait()
        return await self.script(messages, tools)


def held() -> Stoppable:
    used = Usage(input_tokens=7, cost_usd=1.0)
    return Stoppable(tool_reply(call("1", "look"), text="let me see", usage=used), Reply(text="done", usage=used))


async def stop_when_reached(
    fan: Fanout, model: Stoppable, checkpoint: Path | None = None, *, cancel: bool = False
) -> list[ModelResponse]:
    """Stop the fan-out once this model is held, and all others have ended as far as the checkpoint tells."""
    task = asyncio.create_task(fan.run())
    await model.reached.wait()
    while checkpoint is not None:
        kept = load(checkpoint)
        finished = [each for each in kept.responses if not each.interrupted] if kept is not None else []
        if kept is not None and len(finished) == len(kept.adapter_ids) - 1:
            break
        await asyncio.sleep(0.005)
    if cancel:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return []
    await fan.stop(timedelta(0))
    return await task


@pytest.mark.parametrize("cancel", [False, True])
async def test_what_was_stopped_goes_on_and_the_rest_is_left_alone(tmp_path: Path, cancel: bool) -> None:
    model, finished, broken = held(), ScriptedModel("done"), ScriptedModel(RuntimeError("no luck"), "fixed")
    models = {"held": model, "finished": finished, "broken": broken}
    responses = await stop_when_reached(fanout(tmp_path, models), model, tmp_path / "checkpoint.json", cancel=cancel)
    if not cancel:
        assert [(each.interrupted, each.error) for each in responses] == [
            (True, ""),
            (False, ""),
            (False, "RuntimeError: no luck"),
        ]
        assert responses[0].text == "let me see"
    kept = load(tmp_path / "checkpoint.json")
    assert kept is not None
    assert [each.to_response().status for each in kept.responses] == ["interrupted", "completed", "failed"]
    assert (kept.responses[0].input_tokens, kept.responses[0].tool_calls) == (7, {"look": 1})
    model.hold.set()
    responses = await fanout(tmp_path, models).run()
    assert texts(responses) == {"held": "done", "finished": "done", "broken": "RuntimeError: no luck"}
    assert (responses[0].input_tokens, responses[0].cost_usd, responses[0].tool_calls) == (14, 2.0, {"look": 1})
    assert responses[0].latency_ms > kept.responses[0].latency_ms
    assert (len(model.script.requests), len(finished.requests), len(broken.requests)) == (2, 1, 1)
    assert not (tmp_path / "checkpoint.json").exists()


async def test_verbose_logs_the_steps_and_is_restored_on_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.fanout")
    model = held()
    await stop_when_reached(fanout(tmp_path, {"held": model}, verbose=True), model)
    assert caplog.messages == [
        "held: step 1: model answered: let me see",
        "held: step 1: look started",
        "held: step 1: look done",
    ]
    caplog.clear()
    model.hold.set()
    await fanout(tmp_path, {"held": model}).run()
    assert caplog.messages == ["held: step 2: model answered: done"]
    caplog.clear()
    assert texts(await fanout(tmp_path, {"held": ScriptedModel("quiet")}).run(resume=False)) == {"held": "quiet"}
    assert caplog.messages == []


async def _reached(fan: Fanout, *models: Stoppable, then: Exception | None = None) -> None:
    """Return, or raise `then`, while these are held. An event loop that ends cancels every task there is."""
    running = asyncio.create_task(fan.run())
    for model in models:
        await model.reached.wait()
    assert not running.done()
    if then is not None:
        raise then


@pytest.mark.parametrize("then", [None, OSError("the port is taken")])
def test_an_event_loop_that_ends_leaves_every_model(tmp_path: Path, then: OSError | None) -> None:
    one, two, waits = held(), held(), ScriptedModel("done")
    models = {"one": one, "two": two, "waits": waits}
    with contextlib.suppress(OSError):
        asyncio.run(_reached(fanout(tmp_path, models, max_concurrency=2), one, two, then=then))
    for model in (one, two):
        model.hold.set()
    assert texts(fanout(tmp_path, models).run_sync()) == {"one": "done", "two": "done", "waits": "done"}
    assert [len(model.requests) for model in (one.script, two.script, waits)] == [2, 2, 1]


def unavailable() -> Agent:
    """A model that is not retried."""
    return Agent(name="away", model=ScriptedModel(ModelUnavailable("not now")), retry=Retry(max_tries=1))


def test_an_event_loop_that_ends_while_failed_models_are_retried_leaves_them(tmp_path: Path) -> None:
    away = unavailable()
    broken = ScriptedModel(tool_reply(call("1", "look")), RuntimeError("no luck"))
    fanout(tmp_path, {"away": away, "broken": broken}).run_sync()
    model = held()
    asyncio.run(_reached(fanout(tmp_path, {"away": away, "broken": model}, retry_failed=True), model))
    model.hold.set()
    responses = fanout(tmp_path, {"away": ScriptedModel("back"), "broken": model}).run_sync()
    assert texts(responses) == {"away": "back", "broken": "done"}
    assert len(model.script.requests) == 1, "it went on where it had failed"


def test_a_tool_that_exits_leaves_the_other_models(tmp_path: Path) -> None:
    ends = True

    @tool(effect="pure")
    def leave() -> str:
        if ends:
            raise SystemExit(3)
        return "stayed"

    other = held()

    async def after_the_other(messages: Sequence[Any]) -> Reply:
        await other.reached.wait()
        return tool_reply(call("1", "leave"))

    models = {"exits": ScriptedModel(after_the_other, "done"), "other": other}
    with pytest.raises(SystemExit):
        fanout(tmp_path, models, tools=[look, leave], shutdown_timeout=timedelta(0)).run_sync()
    ends = False
    other.hold.set()
    assert texts(fanout(tmp_path, models, tools=[look, leave]).run_sync()) == {"exits": "done", "other": "done"}
    assert len(other.script.requests) == 2


async def test_a_model_that_lets_out_a_cancel_has_failed(tmp_path: Path) -> None:
    models = {"broken": ScriptedModel(asyncio.CancelledError()), "fine": ScriptedModel("done")}
    broken, fine = await fanout(tmp_path, models).run()
    assert "its own code raised CancelledError" in broken.error
    assert (broken.interrupted, fine.text) == (False, "done")


async def test_failed_models_go_on_when_that_is_asked_for(tmp_path: Path) -> None:
    model = held()
    used = Usage(input_tokens=3)
    broken = ScriptedModel(tool_reply(call("1", "look"), usage=used), RuntimeError("no luck"))
    await stop_when_reached(fanout(tmp_path, {"held": model, "broken": broken}), model, tmp_path / "checkpoint.json")
    model.hold.set()
    repaired = ScriptedModel(tool_reply(call("1", "look"), usage=used), Reply(text="fixed", usage=used))
    responses = await fanout(tmp_path, {"held": model, "broken": repaired}, retry_failed=True).run()
    assert texts(responses) == {"held": "done", "broken": "fixed"}
    assert len(repaired.requests) == 1, "it went on where it had failed"
    assert responses[1].input_tokens == 6


async def test_a_failed_model_that_continues_has_the_files_that_it_has_proposed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    write = tool_reply(call("1", "write_file", path="a.txt", content="hello"))
    edit = tool_reply(call("2", "edit_file", path="a.txt", old="hello", new="bye"))
    for model, status in (
        (ScriptedModel(write, RuntimeError("no luck")), "failed"),
        (ScriptedModel(write, edit, "done"), "completed"),
    ):
        [response] = await fanout(tmp_path, {"a": model}, workspace=tmp_path / "work", retry_failed=True).run()
        assert response.status == status
    assert [each.content for each in response.proposed_writes] == ["bye"]


async def test_a_provider_that_does_not_answer_is_an_interruption(tmp_path: Path) -> None:
    models = {"away": unavailable(), "there": ScriptedModel("hello")}
    responses = await fanout(tmp_path, models).run()
    assert [(each.interrupted, each.ok) for each in responses] == [(True, False), (False, True)]
    assert "not now" in responses[0].error
    responses = await fanout(tmp_path, {"away": ScriptedModel("back"), "there": ScriptedModel()}).run()
    assert texts(responses) == {"away": "back", "there": "hello"}


@pytest.mark.parametrize("is_back", [True, False])
async def test_the_answer_of_a_retried_model_is_in_the_file_while_the_others_still_work(
    tmp_path: Path, is_back: bool
) -> None:
    broken = {name: ScriptedModel(RuntimeError("no luck")) for name in "ab"}
    await fanout(tmp_path, broken).run()
    model = held()
    models = {"a": ScriptedModel("fixed") if is_back else unavailable(), "b": model}
    retrying = asyncio.create_task(fanout(tmp_path, models, retry_failed=True, max_concurrency=1).run())
    await model.reached.wait()
    kept = load(tmp_path / "checkpoint.json")
    model.hold.set()
    assert [each.status for each in await retrying] == ["completed" if is_back else "interrupted", "completed"]
    assert kept is not None
    assert [each.text for each in kept.responses if each.completed] == (["fixed"] if is_back else [])


async def test_a_provider_that_stays_away_is_asked_once_by_each_run(tmp_path: Path) -> None:
    away = ScriptedModel(ModelUnavailable("not now"))
    agent = Agent(name="away", model=away, retry=Retry(max_tries=1))
    for _ in range(3):
        responses = await fanout(tmp_path, {"away": agent, "there": ScriptedModel("hello")}).run()
        assert [each.status for each in responses] == ["interrupted", "completed"]
    assert len(away.requests) == 3


async def test_a_retried_model_whose_provider_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    broken = ScriptedModel(RuntimeError("no luck"))
    [response] = await fanout(tmp_path, {"a": broken}).run()
    assert response.status == "failed"
    retrying = asyncio.create_task(fanout(tmp_path, {"a": unavailable()}, retry_failed=True).run())
    await asyncio.wait([retrying], timeout=60)  # the App itself would wait until the provider is back
    assert retrying.done()
    assert [each.status for each in await retrying] == ["interrupted"]
    responses = await fanout(tmp_path, {"a": ScriptedModel("fixed")}, retry_failed=True).run()
    assert texts(responses) == {"a": "fixed"}


async def test_one_provider_is_down_the_others_answer_and_the_next_run_asks_it_at_once(tmp_path: Path) -> None:
    agents = {f"{name}:1": ScriptedModel(name) for name in "abcd"}
    responses = await fanout(tmp_path, {"x": unavailable(), **agents}, max_concurrency=1).run()
    assert [(each.status, each.text) for each in responses[1:]] == [("completed", name) for name in "abcd"]
    assert (responses[0].status, "not now" in responses[0].error) == ("interrupted", True)
    assert (await list_statuses(tmp_path))[0] is RunStatus.WAITING
    responses = await fanout(tmp_path, {"x": ScriptedModel("back"), **agents}).run()
    assert texts(responses) == {"x": "back", **{f"{name}:1": name for name in "abcd"}}


async def test_a_fanout_that_waits_for_a_provider_asks_it_again_before_its_time() -> None:
    clock = ManualClock()
    replies: list[Reply | Exception] = [ModelUnavailable("not now"), Reply(text="back")]

    async def ask(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        reply = replies.pop(0)
        if isinstance(reply, Reply):
            return reply
        raise reply

    fan = Fanout("why?", [Agent(name="away", model=ask, retry=Retry(max_tries=1))])
    async with App(fan.agents, MemoryStore(clock=clock), clock=clock) as app:
        assert [each.status for each in await fan.run(app)] == ["interrupted"]
        again = asyncio.create_task(fan.run(app))
        await asyncio.wait([again], timeout=60)  # without a request to resume it would wait for the clock
        assert again.done()
        assert texts(await again) == {"away": "back"}


async def test_a_checkpoint_file_of_another_fanout_is_neither_used_nor_replaced(tmp_path: Path) -> None:
    model = held()
    await stop_when_reached(fanout(tmp_path, {"held": model}), model)
    before = (tmp_path / "checkpoint.json").read_bytes()
    for models, prompt in (({"held": model}, "who?"), ({"other": model}, "why?")):
        with pytest.raises(FanoutError, match="belongs to another fan-out"):
            await fanout(tmp_path, models, prompt).run()
    assert (tmp_path / "checkpoint.json").read_bytes() == before
    model.hold.set()
    asked = len(model.script.requests)
    assert texts(await fanout(tmp_path, {"held": model}).run(resume=False)) == {"held": "done"}
    assert len(model.script.requests) == asked + 2, "it started over"


async def test_a_run_id_is_an_identity(tmp_path: Path) -> None:
    assert texts(await fanout(tmp_path, {"a": ScriptedModel("x")}, fanout_id="f").run()) == {"a": "x"}
    for models, prompt in (({"a": ScriptedModel("x")}, "who?"), ({"b": ScriptedModel("x")}, "why?")):
        with pytest.raises(RunConflict):
            await fanout(tmp_path, models, prompt, fanout_id="f").run()


async def test_the_completed_responses_of_a_file_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_text(
        '{"prompt":"why?","timestamp":"2026-02-24T10:00:00.123456789+01:00","adapter_ids":["a","b","c"],"responses":['
        '{"model_id":"a","text":"because","latency_ms":12,"input_tokens":3,"output_tokens":4,"cost_usd":0.5,'
        '"proposed_writes":[{"path":"x.txt","content":"x"}],"interrupted":false,"completed":true},'
        '{"model_id":"c","latency_ms":1,"input_tokens":1,"output_tokens":0,"cost_usd":0,"interrupted":true,'
        '"completed":false}],"verbose":false}'
    )
    kept = load(tmp_path / "checkpoint.json")
    assert kept is not None
    models = {"a": ScriptedModel(), "b": ScriptedModel("two"), "c": ScriptedModel("three")}
    for _ in range(2):
        responses = await fanout(tmp_path, models).run()
        assert texts(responses) == {"a": "because", "b": "two", "c": "three"}
        assert ResponseSnapshot.from_response(responses[0]) == kept.responses[0]
    assert not (tmp_path / "checkpoint.json").exists()


async def test_in_memory() -> None:
    store = MemoryStore()
    responses = await Fanout("why?", {"a": ScriptedModel("x")}, store=store, settings=NO_SIGNALS).run()
    assert texts(responses) == {"a": "x"}


async def test_fanouts_at_the_same_time_share_an_app(tmp_path: Path) -> None:
    longer, quick = held(), ScriptedModel("y")
    one = Fanout("why?", {"a": longer}, tools=[look])
    other = Fanout("who?", {"a": quick}, tools=[look])
    async with App([*one.agents, *other.agents], f"sqlite:{tmp_path / 'runs.db'}") as app:
        running = asyncio.create_task(one.run(app))
        await longer.reached.wait()
        assert texts(await other.run(app)) == {"a": "y"}
        again = asyncio.create_task(one.run(app))
        longer.hold.set()
        assert texts(await running) == texts(await again) == {"a": "done"}
    assert len(longer.script.requests) == 2


async def test_a_stopped_fanout_continues_in_an_app_that_is_not_its_own(tmp_path: Path) -> None:
    model = held()
    fan = Fanout("why?", {"a": model}, tools=[look])
    async with App(fan.agents, f"sqlite:{tmp_path / 'runs.db'}") as app:
        running = asyncio.create_task(fan.run(app))
        await model.reached.wait()
        await fan.stop()
        assert [(each.status, each.text) for each in await running] == [("interrupted", "let me see")]
        model.hold.set()
        assert (await app.result(fan.run_id)).output == "1 models were asked"


async def test_the_checkpoint_stays_where_it_is_when_a_tool_changes_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    seen: list[bool] = []

    @tool(effect="once")
    def go() -> str:
        os.chdir(tmp_path / "elsewhere")
        return "there"

    async def look_back(messages: Sequence[Any]) -> Reply:
        seen.append((tmp_path / "c.json").exists())
        return Reply(text="done")

    fan = Fanout(
        "why?",
        {"a": ScriptedModel(tool_reply(call("1", "go")), look_back)},
        tools=[go],
        store=f"sqlite:{tmp_path / 'runs.db'}",
        checkpoint="c.json",
        settings=NO_SIGNALS,
    )
    assert texts(await fan.run()) == {"a": "done"}
    assert seen == [True]
    assert not [path.name for path in tmp_path.rglob("*c.json*")]


async def test_a_stop_before_anything_was_asked_leaves_everything(tmp_path: Path) -> None:
    model = ScriptedModel("x")
    fan = fanout(tmp_path, {"a": model})
    task = asyncio.create_task(fan.run())
    await asyncio.sleep(0)
    await fan.stop()
    assert [response.interrupted for response in await task] == [True]
    assert model.requests == []
    assert texts(await fan.run()) == {"a": "x"}


async def test_a_file_that_was_changed_meanwhile_fails_the_model_that_had_edited_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("hello")
    editor = Stoppable(tool_reply(call("1", "edit_file", path="a.txt", old="hello", new="bye")), "done")
    writer = Stoppable(tool_reply(call("1", "write_file", path="a.txt", content="bye")), "done")
    models = {"editor": editor, "writer": writer}

    def in_folder() -> Fanout:
        return fanout(tmp_path, models, workspace=tmp_path / "work")

    task = asyncio.create_task(in_folder().run())
    await editor.reached.wait()
    await writer.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (tmp_path / "work" / "a.txt").write_text("changed by another program")
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    left = await read_responses(store, in_folder().run_id, Workspace(tmp_path / "work"))
    await store.close()
    assert ["a.txt was changed on disk" in each.error for each in left] == [True, False]
    editor.hold.set()
    writer.hold.set()
    responses = await in_folder().run()
    assert "WorkspaceChanged: a.txt was changed on disk" in responses[0].error
    assert [each.status for each in responses] == ["failed", "completed"]
    assert (responses[1].text, [each.content for each in responses[1].proposed_writes]) == ("done", ["bye"])


@pytest.mark.parametrize(
    ("models", "options", "why"),
    [
        ({}, {}, "at least one model"),
        ([ScriptedModel("x")], {}, "has no name"),
        ({"a": 42}, {}, "neither a model nor an agent"),
        (
            [Agent(name="a", model=ScriptedModel("x")), Agent(name="a", model=ScriptedModel("y"))],
            {},
            "two models are named 'a'",
        ),
        ({"a": ScriptedModel("x")}, {"variants": [Variant(name="v"), Variant(name="v")]}, "two variants"),
        (
            {"a": ScriptedModel("x"), "a~b": ScriptedModel("y")},
            {"variants": [Variant(name="b~c"), Variant(name="c")]},
            "two cells have the id 'a~b~c'",
        ),
        ({"a": ScriptedModel("x")}, {"max_concurrency": 0}, "at least 1"),
        ({"a": ScriptedModel("x")}, {"max_per_provider": {"a": 0}}, "at least 1"),
        (
            [Agent(name="a", model=ScriptedModel("x"), phases=[Phase(name="one")])],
            {"workspace": "."},
            "phases or compaction",
        ),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, models: Any, options: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        fanout(tmp_path, models, **options)


@pytest.mark.parametrize("fanout_id", ["compare models", "f" * 290])
def test_an_id_that_no_run_can_have_is_refused(tmp_path: Path, fanout_id: str) -> None:
    with pytest.raises(InvalidRunId):
        fanout(tmp_path, {"a": ScriptedModel("x")}, fanout_id=fanout_id)
