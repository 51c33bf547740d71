"""The settings of an App: wrong ones are refused, and `replace` keeps what it is not given."""

import inspect
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, CheckpointSettings, Reply, Retention, WorkerSettings
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core.errors import DefinitionError
from holdfast.runtime.app_options import AppOptions
from holdfast.stores.memory import MemoryStore

AGENT = Agent(name="a", model=ScriptedModel("done"))


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        (CheckpointSettings, "save_interval", 5),
        (CheckpointSettings, "save_interval", timedelta(seconds=-1)),
        (CheckpointSettings, "max_transcript_bytes", "1 MB"),
        (CheckpointSettings, "max_transcript_bytes", 0),
        (CheckpointSettings, "retention", timedelta(days=1)),
        (Retention, "done", timedelta(days=-1)),
        (Retention, "failed", None),
        (Retention, "cancelled", 7),
        (CheckpointSettings, "require_durability", "yes"),
        (CheckpointSettings, "store_timeout", 30.0),
        (CheckpointSettings, "redact", "secret"),
        (WorkerSettings, "concurrency", 0),
        (WorkerSettings, "concurrency", True),
        (WorkerSettings, "concurrency", 1.5),
        (WorkerSettings, "take_runs", 1),
        (WorkerSettings, "shutdown_timeout", 30),
        (WorkerSettings, "handle_signals", None),
        (WorkerSettings, "concurrency_limits", 7),
        (WorkerSettings, "concurrency_limits", ["agent"]),
    ],
)
def test_a_wrong_setting_is_refused(settings: Any, field: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"^{field} is "):
        settings(**{field: value})
    with pytest.raises(DefinitionError, match=f"^{field} is "):
        replace(settings(), **{field: value})


class HostStopping(Exception):
    pass


async def test_a_run_that_ends_with_a_shutdown_exception_of_the_host_is_kept() -> None:
    async def model(*_: Any) -> Reply:
        try:
            raise HostStopping
        except HostStopping as exc:
            raise ConnectionError("the client is closed") from exc

    store = MemoryStore()
    agent = Agent(name="a", model=model)
    async with App([agent], store, worker=WorkerSettings(shutdown_exceptions=(HostStopping,))) as app:
        with pytest.raises(ConnectionError):
            await app.run(agent, "go", run_id="r")
        assert [record.status async for record in iter_runs(store)] == [RunStatus.INTERRUPTED]


PORTS = ["audit", "budget", "rate_limits", "critic", "listener", "tools", "schedule", "telemetry"]


@pytest.mark.parametrize("name", [*PORTS, "clock", "store"])
def test_an_app_refuses_an_object_without_the_methods_of_the_port(name: str) -> None:
    values: list[Any] = [7, object(), str]
    for wrong in values:
        with pytest.raises(DefinitionError, match=f"^{name} is .*: give "):
            App([AGENT], **{name: wrong})


def test_the_error_about_a_port_names_its_methods() -> None:
    wrong: Any = "10 per minute"
    with pytest.raises(DefinitionError, match="give a RateLimiter, an object with the methods acquire, settle, pause"):
        App([AGENT], None, rate_limits=wrong)


@pytest.mark.parametrize("value", [HostStopping, [HostStopping], ("HostStopping",), (int,)], ids=repr)
def test_shutdown_exceptions_are_a_tuple_of_exception_classes(value: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^shutdown_exceptions "):
        WorkerSettings(shutdown_exceptions=value)


def test_an_app_refuses_settings_of_another_type() -> None:
    wrong: Any = {"save_interval": timedelta(0)}
    with pytest.raises(DefinitionError, match="give a CheckpointSettings"):
        App([AGENT], checkpoint=wrong)
    with pytest.raises(DefinitionError, match="give a WorkerSettings"):
        App([AGENT], worker=wrong)


def test_replace_keeps_everything_else() -> None:
    store, checkpoint = MemoryStore(), CheckpointSettings(save_interval=timedelta(seconds=1))
    app = App([AGENT], store, checkpoint=checkpoint)

    other = app.replace(worker=WorkerSettings(concurrency=3))

    assert other.store is store
    assert other.agents == app.agents
    assert other.checkpoint_settings is checkpoint
    assert other.worker_settings.concurrency == 3
    assert app.worker_settings.concurrency == 16


def test_the_options_of_replace_are_the_parameters_of_an_app() -> None:
    parameters = [name for name in inspect.signature(App.__init__).parameters if name != "self"]
    assert list(AppOptions.__annotations__) == parameters
