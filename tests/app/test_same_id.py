"""Who asks for a run by an id gets that run, whoever has driven it, and never another one."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import Agent, App, Message, Reply, ToolSchema
from holdfast.checkpoint.errors import RunConflict
from holdfast.run.errors import RunFailed, Shutdown


class Page:
    """Something large that a model call holds."""


class Model:
    """Leaves its runs interrupted, then answers them; a question for trouble ends the run."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[str] = []
        self.pages: list[weakref.ref[Page]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        page = Page()
        self.pages.append(weakref.ref(page))
        if self.away:
            raise Shutdown("going down")
        question = str(getattr(messages[0], "text", ""))
        self.asked.append(question)
        if question == "trouble":
            try:
                raise KeyError("first")
            except KeyError as exc:
                raise ValueError("no such thing") from exc
        return Reply(text=f"answer to {question}")


async def interrupted(url: str, model: Model, prompt: str) -> App:
    """An App with which the run `r` goes on, that an earlier one has left."""
    agents = [Agent(name="agent", model=model), Agent(name="other", model=model)]
    async with App(agents, url, recover=False) as earlier:
        with pytest.raises(Shutdown):
            await earlier.run("agent", prompt, run_id="r")
    model.away = False
    return App(agents, url, recover=False)


async def test_an_id_under_which_recovery_has_ended_a_run_gives_that_run_and_no_other(tmp_path: Path) -> None:
    model = Model()
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", model, "Monday") as app:
        await app.recover()
        assert (await app.run("agent", "Monday", run_id="r")).output == "answer to Monday"
        with pytest.raises(RunConflict):
            await app.run("agent", "Tuesday", run_id="r")
        with pytest.raises(RunConflict):
            await app.run("other", "Monday", run_id="r")
    assert model.asked == ["Monday"]


async def test_of_a_run_that_failed_in_recovery_the_error_is_known_and_nothing_else_is_held(tmp_path: Path) -> None:
    model = Model()
    async with await interrupted(f"sqlite:{tmp_path}/runs.db", model, "trouble") as app:
        await app.recover()
        for _ in range(2):
            with pytest.raises(RunFailed, match="run r failed: ValueError: no such thing"):
                await app.run("agent", "trouble", run_id="r")
        gc.collect()
        assert [page() for page in model.pages] == [None, None]
    assert model.asked == ["trouble"]
