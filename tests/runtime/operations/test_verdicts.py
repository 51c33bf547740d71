"""A pick is a row beside the runs: the newest counts, an empty one takes it back, and it is removed with its run."""

from pathlib import Path

import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, WorkerSettings
from holdfast.checkpoint.errors import RunNotFound
from holdfast.runtime.operations.verdicts import PICK, purge_verdicts, read_verdict, record_verdict, remove_verdicts
from holdfast.stores.memory import MemoryStore

AGENT = Agent(name="a", model=ScriptedModel("one"))
NO_RUNS = WorkerSettings(take_runs=False)


async def test_the_newest_pick_counts_and_an_empty_one_takes_it_back(store_url: str) -> None:
    async with App([AGENT], store_url, worker=NO_RUNS) as app:
        await app.run("a", "go", run_id="r1")
        assert await app.get_pick("r1") is None
        for result, by in (("one", "ann"), ("two", "bob")):
            await app.pick("r1", result, by=by)
        pick = await app.get_pick("r1")
        assert pick is not None
        assert (pick.run_id, pick.name, pick.value, pick.by) == ("r1", "pick", "two", "bob")
        await app.pick("r1", "")
        assert await app.get_pick("r1") is None
        with pytest.raises(RunNotFound):
            await app.pick("r2", "one")
        assert [run.run_id for run in (await app.list()).runs] == ["r1"], "a pick is no run"


async def test_a_pick_survives_the_process_and_is_told_apart_from_other_verdicts(tmp_path: Path) -> None:
    store_url = f"sqlite:{tmp_path / 'runs.db'}"
    async with App([AGENT], store_url, worker=NO_RUNS) as app:
        await app.run("a", "go", run_id="r1")
        await app.pick("r1", "one", by="ann")
        assert app.store is not None
        await record_verdict(app.store, "r1", "score", "5", by="eval")
    async with App([AGENT], store_url, worker=NO_RUNS) as app:
        assert app.store is not None
        pick, score = [await read_verdict(app.store, "r1", name) for name in (PICK, "score")]
        assert pick is not None
        assert score is not None
        assert (pick.value, score.value, score.by) == ("one", "5", "eval")


async def test_the_verdicts_of_removed_runs_are_purged_and_the_others_stay() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=NO_RUNS) as app:
        assert await purge_verdicts(store) == ""
        for number in range(210):
            await record_verdict(store, f"gone-{number:03}", PICK, "x", by="ann")
        await app.run("a", "go", run_id="r1")
        await app.pick("r1", "one")
        after = await purge_verdicts(store)
        assert after == "gone-199"
        assert await read_verdict(store, "gone-000", PICK) is None
        assert await read_verdict(store, "gone-209", PICK) is not None
        assert await purge_verdicts(store, after) == ""
        assert await read_verdict(store, "gone-209", PICK) is None
        assert await app.get_pick("r1") is not None
        await remove_verdicts(store, "r1")
        assert await app.get_pick("r1") is None
