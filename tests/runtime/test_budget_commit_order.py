"""A budget gets the whole usage before a run is removed: after a crash in between it could not be recovered."""

from pathlib import Path

from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, RunInfo
from holdfast.checkpoint.store import iter_runs
from holdfast.core.run.state import RunState


class WatchfulBudget:
    """Looks up, at each commit, which runs the store has."""

    def __init__(self) -> None:
        self.app: App | None = None
        self.told: list[tuple[int, list[str]]] = []

    async def check(self, info: RunInfo, state: RunState) -> None:
        return

    async def commit(self, info: RunInfo, state: RunState) -> None:
        assert self.app is not None
        assert self.app.store is not None
        there = [record.run_id async for record in iter_runs(self.app.store)]
        self.told.append((state.steps, there))


async def test_the_last_commit_comes_before_the_run_is_removed(tmp_path: Path) -> None:
    budget = WatchfulBudget()
    agent = Agent(name="agent", model=ScriptedModel("fine"))
    async with App([agent], f"sqlite:{tmp_path}/runs.db", budget=budget) as app:
        budget.app = app
        await app.run(agent, "how are you?", run_id="one")
    assert budget.told
    assert all(there == ["one"] for _, there in budget.told)
    assert budget.told[-1][0] == 1
