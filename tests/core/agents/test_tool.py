"""From a typed function to what a model sees, and from what a model gives to a call."""

import asyncio
import datetime
import functools
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool, tool
from holdfast.core.errors import DefinitionError


class Place(msgspec.Struct):
    lat: float
    lon: float


def forecast(city: str, days: int = 3, at: Place | None = None) -> str:
    """Tell the weather."""
    return f"{city} {days} {at}"


def test_the_schema_comes_from_the_signature() -> None:
    schema = Tool(forecast).schema
    assert (schema.name, schema.description) == ("forecast", "Tell the weather.")
    assert schema.parameters["type"] == "object"
    assert schema.parameters["required"] == ["city"]
    assert schema.parameters["properties"]["days"] == {"type": "integer", "default": 3}
    assert set(schema.parameters["$defs"]) == {"Place"}
    assert schema.parameters["additionalProperties"] is False


def test_a_tool_that_says_nothing_is_once() -> None:
    assert Tool(forecast).effect is Effect.ONCE
    assert tool(forecast).effect is Effect.ONCE
    assert tool(effect="pure")(forecast).effect is Effect.PURE


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ({"city": "Bonn"}, {"city": "Bonn", "days": 3, "at": None}),
        ({"city": "Bonn", "days": 10**30}, {"city": "Bonn", "days": 10**30, "at": None}),
        ({"city": "\0", "at": {"lat": 1, "lon": 2.5}}, {"city": "\0", "days": 3, "at": Place(1.0, 2.5)}),
    ],
)
def test_arguments_that_fit_become_typed(given: Any, checked: dict[str, Any]) -> None:
    assert Tool(forecast).check(given) == checked


@pytest.mark.parametrize(
    "given",
    [
        None, [], "", 5, {}, {"city": None}, {"city": 1}, {"city": "x", "days": "3"}, {"city": "x", "days": 1.5},
        {"city": "x", "days": True}, {"city": "x", "town": "y"}, {"city": "x", "at": {"lat": 10**400, "lon": 1}},
    ],
    ids=lambda given: repr(given)[:40],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_a_value_error_for_the_model(given: Any) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing|unknown field|out of range"):
        Tool(forecast).check(given)


def test_a_tool_may_change_its_arguments_without_changing_the_conversation() -> None:
    def greedy(anything: Any, nested: dict[str, Any]) -> None: ...

    given = {"anything": {"list": [1]}, "nested": {"deep": {"list": [1]}}}
    checked = Tool(greedy).check(given)
    checked["anything"]["list"].append(2)
    checked["nested"]["deep"]["list"].append(2)
    assert given == {"anything": {"list": [1]}, "nested": {"deep": {"list": [1]}}}


def test_a_mutable_default_is_made_anew_indefinitelyy_call() -> None:
    def collect(into: list[int] = [1]) -> list[int]:  # noqa: B006
        return into

    first = Tool(collect).check({})
    first["into"].append(2)
    assert Tool(collect).check({}) == {"into": [1]}


async def _plain_async(x: int) -> int:
    return x


def _wrapped_by_plain(x: int) -> Any:
    return _plain_async(x)


functools.update_wrapper(_wrapped_by_plain, _plain_async)


def _sync(x: int) -> int:
    return x


@functools.wraps(_sync)
async def _wrapped_by_async(x: int) -> int:
    return _sync(x)


class _AsyncObject:
    async def __call__(self, x: int) -> int:
        return x


class _Methods:
    def plain(self, x: int) -> int:
        return x

    async def later(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    "function",
    [
        _plain_async,
        _sync,
        _wrapped_by_plain,
        _wrapped_by_async,
        _AsyncObject(),
        functools.partial(_sync),
        functools.partial(_plain_async),
        _Methods().plain,
        _Methods().later,
    ],
)
async def test_every_kind_of_callable_is_called_and_awaited(function: Callable[..., Any]) -> None:
    made = Tool(function, name="it")
    assert await made.call(made.check({"x": 5})) == 5


async def test_a_sync_tool_runs_in_a_thread_and_an_async_one_does_not() -> None:
    def here() -> int:
        return threading.get_ident()

    async def there() -> int:
        return threading.get_ident()

    assert await Tool(here).call({}) != threading.get_ident()
    assert await Tool(there).call({}) == threading.get_ident()


async def test_an_exception_of_the_tool_comes_out_of_a_call_as_it_is() -> None:
    def broken() -> None:
        raise LookupError("no such row")

    with pytest.raises(LookupError, match="no such row"):
        await Tool(broken).call({})


def _no_annotation(x) -> None: ...  # type: ignore[no-untyped-def]
def _positional(x: int, /) -> None: ...
def _star(*x: int) -> None: ...
def _double_star(**x: int) -> None: ...
def _no_json_form(x: asyncio.Queue[int]) -> None: ...
def _unresolved(x: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821
def _private(__x: int) -> None: ...


@pytest.mark.parametrize(
    "function",
    [_no_annotation, _positional, _star, _double_star, _no_json_form, _unresolved, _private, lambda: None],
    ids=lambda function: function.__name__,
)
def test_a_function_that_no_model_could_call_is_refused_when_the_tool_is_made(function: Callable[..., Any]) -> None:
    with pytest.raises(DefinitionError):
        Tool(function)


async def _reconcile(context: Any) -> Any: ...


@pytest.mark.parametrize("options", [{"effect": "twice"}, {"effect": "pure", "reconcile": _reconcile}])
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Tool(forecast, **options)


def test_dates_and_durations_arrive_as_such() -> None:
    def remind(at: datetime.datetime, every: datetime.timedelta) -> None: ...

    checked = Tool(remind).check({"at": "2030-01-02T03:04:05Z", "every": "PT1H"})
    assert checked["at"] == datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert checked["every"] == datetime.timedelta(hours=1)
