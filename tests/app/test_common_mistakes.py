"""What a newcomer reads after a mistake that many make."""

import asyncio
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, ApprovalRequest, Reply, tool
from holdfast.adapters.openai_agents import durable as sdk_durable
from holdfast.adapters.pydantic_ai import durable as pydantic_durable
from holdfast.batteries.budget import Budget, BudgetError, Limit
from holdfast.core.agents.calls import Effect
from holdfast.errors import ClaimLost, DefinitionError, RunConflict, StoreError
from holdfast.workflows import workflow


async def answer(messages: Any, tools: Any) -> Reply:
    return Reply(text="hello")


async def test_a_plain_function_as_a_model() -> None:
    def model(messages: Any, tools: Any) -> Reply:
        return Reply(text="hello")

    agent = Agent(name="a", model=model)  # type: ignore[arg-type]
    async with App([agent], "memory:") as app:
        with fails_with(DefinitionError, match="a plain function: write it as `async def model"):
            await app.run(agent, "go")


async def test_a_type_error_of_a_model_is_its_own() -> None:
    async def model(messages: Any, tools: Any) -> Reply:
        raise TypeError("of the provider")

    async with App([Agent(name="a", model=model)], "memory:") as app:
        with fails_with(TypeError, match="of the provider"):
            await app.run("a", "go")


def test_a_misspelled_option_of_a_tool() -> None:
    with pytest.raises(DefinitionError, match="@tool has no option efect: did you mean effect"):
        tool(efect="pure")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="@tool has no option colour: it has name, description, effect"):
        tool(colour="red")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="effect is 'pur': give one of pure, idempotent, once"):
        tool(effect="pur")(test_a_misspelled_option_of_a_tool)  # type: ignore[call-overload]


def test_options_beside_a_function_are_not_ignored() -> None:
    """A tool that loses its approval would be called without one."""

    async def pay(amount: int) -> str:
        return f"paid {amount}"

    made = tool(pay, approval=True, effect="pure")  # type: ignore[call-overload]
    assert (made.policy.effect, made.policy.request_approval({"amount": 1})) == (Effect.PURE, ApprovalRequest())
    assert workflow(pay, name="buy").name == "buy"  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="@tool has no option aproval: did you mean approval"):
        tool(pay, aproval=True)  # type: ignore[call-overload]


@pytest.mark.parametrize("operation", ["run", "submit"])
async def test_a_conflict_has_no_second_traceback(operation: str, tmp_path: Path) -> None:
    async with App([Agent(name="a", model=answer)], f"sqlite:{tmp_path / 'runs.db'}") as app:
        await app.submit("a", "one", run_id="r")
        with pytest.raises(RunConflict) as caught:
            await getattr(app, operation)("a", "two", run_id="r")
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("code", "missing", "extra"),
    [
        ("import holdfast.adapters.pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("import holdfast.adapters.langgraph", "langgraph", "langgraph"),
        ("import holdfast.adapters.openai_agents", "agents", "openai-agents"),
        ("import holdfast.client", "httpx", "client"),
        ("import holdfast.batteries.telemetry", "opentelemetry", "otel"),
        ("from holdfast import App; App([]).web()", "starlette", "web"),
    ],
)
def test_a_missing_extra_is_named(code: str, missing: str, extra: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {missing}")
    assert last.endswith(f'is not installed: pip install "holdfast[{extra}]"')


async def _answer_without_tools(messages: Any) -> Reply:
    return Reply(text="hello")


async def _answer_with_more(messages: Any, tools: Any, client: Any) -> Reply:
    return Reply(text="hello")


@pytest.mark.parametrize("model", [_answer_without_tools, _answer_with_more])
def test_a_model_with_other_parameters_is_refused_where_it_is_defined(model: Any) -> None:
    with pytest.raises(DefinitionError, match=r"write `async def model\(messages, tools\)`"):
        Agent(name="a", model=model)


def test_a_model_may_be_any_callable_that_takes_messages_and_tools() -> None:
    class Scripted:
        async def __call__(self, messages: Any, tools: Any, *, temperature: float = 0.0) -> Reply:
            return Reply(text="ok")

    async def model(*given: Any) -> Reply:
        return Reply(text="ok")

    for each in (Scripted(), model, functools.partial(Scripted(), temperature=1.0)):
        Agent(name="a", model=each)


def test_durable_refuses_an_agent_of_another_kind() -> None:
    agent: Any = Agent(name="a", model=ScriptedModel("ok"))
    with pytest.raises(DefinitionError, match="give an agent of pydantic-ai"):
        pydantic_durable(agent)
    with pytest.raises(DefinitionError, match="give an agent of the OpenAI Agents SDK"):
        sdk_durable(agent)


def test_limits_of_a_budget_are_checked() -> None:
    given: Any = 7
    with pytest.raises(BudgetError, match="a limit is 7: give a Limit, such as"):
        Budget(given)
    with pytest.raises(BudgetError, match="window is 7: give a positive timedelta"):
        Limit(tokens=1, window=given)


def test_sqlite_in_memory_is_no_file_of_that_name() -> None:
    with pytest.raises(StoreError, match="write memory:"):
        App([Agent(name="a", model=ScriptedModel("ok"))], "sqlite::memory:")


async def test_an_app_that_was_never_opened_says_how_to_open_it() -> None:
    app = App([Agent(name="a", model=answer)], "memory:")
    for operation in (app.get("r"), app.submit("a", "go"), app.cancel("r")):
        with pytest.raises(DefinitionError, match="the App is not open: use it as `async with app:`"):
            await operation


async def test_a_tool_that_raises_that_another_run_was_lost_leaves_its_own_run_to_the_workers() -> None:
    tries = 0

    @tool(effect="idempotent")
    async def resume_other() -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ClaimLost("other", 1, 2)
        return "resumed"

    model = ScriptedModel(tool_reply(call("c", "resume_other")), "done")
    async with App([Agent(name="a", model=model, tools=[resume_other])], "memory:") as app, asyncio.timeout(30):
        assert (await app.run("a", "go")).output == "done"
    assert tries == 2
