"""Definitions of tools, agents, phases and tiers: what they accept, refuse and make of it."""

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Retry
from holdfast.core.agents.agent import Agent, Bounds, ModelTiers, Phase, failover
from holdfast.core.agents.agent_tools import AgentToolProvider, to_tool_name
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool, ToolPolicy, tool
from holdfast.core.agents.tool_context import _CURRENT_CALL, ToolContext, current_call
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.errors import DefinitionError, RunError
from holdfast.core.execution.executor import Executor
from holdfast.core.run.info import MAX_KEY_LENGTH, AgentDetails, RunInfo
from holdfast.core.run.messages import Message, Reply
from holdfast.core.run.state import PhaseOutput
from holdfast.core.run.waiting import ApprovalRequest, Suspend
from holdfast.testing.manual_clock import ManualClock

MODEL = ScriptedModel("done")
INFO = RunInfo(run_id="r", agent_name="a", prompt="go")
SECOND = timedelta(seconds=1)


async def work(x: int, y: int = 2, *, z: int = 3) -> int:
    """Do the work.

    In two lines.
    """
    return x + y + z


async def reconcile(context: ToolContext) -> Any: ...


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        ((1,), {}, {"x": 1}),
        ((1, 5), {}, {"x": 1, "y": 5}),
        ((1,), {"z": 7}, {"x": 1, "z": 7}),
        ((), {"x": 1, "y": 2, "z": 3}, {"x": 1, "y": 2, "z": 3}),
        ((), {}, TypeError),
        ((1, 2, 3), {}, TypeError),
        ((1,), {"x": 1}, TypeError),
        ((1,), {"w": 1}, TypeError),
    ],
)
def test_arguments_are_bound_by_name_without_defaults(
    args: tuple[Any, ...], kwargs: dict[str, Any], bound: Any
) -> None:
    made = Tool(work)
    if bound is TypeError:
        with pytest.raises(TypeError):
            made.bind(args, kwargs)
    else:
        assert made.bind(args, kwargs) == bound


def test_a_function_without_optional_parameters_is_bound_too() -> None:
    async def both(x: int, y: int) -> None: ...

    assert Tool(both).bind((1, 2), {}) == {"x": 1, "y": 2}
    assert Tool(both).bind((1,), {"y": 2}) == {"x": 1, "y": 2}
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"y": 3})):
        with pytest.raises(TypeError):
            Tool(both).bind(args, kwargs)

    async def only_named(first: int = 1, *, amount: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    made = Tool(only_named)
    assert made.bind((), {"amount": 5}) == {"amount": 5}
    assert made.bind((7,), {"amount": 5}) == {"first": 7, "amount": 5}
    assert made.schema.parameters["properties"]["amount"] == {"type": "integer", "minimum": 1}

    async def all_named(*, amount: int) -> None: ...

    with pytest.raises(TypeError):
        Tool(all_named).bind((5,), {})


def test_the_name_and_the_description_of_a_tool() -> None:
    made = Tool(work)
    assert (made.name, made.schema.description, made.returns) == ("work", "Do the work.\n\nIn two lines.", int)
    assert "title" not in made.schema.parameters
    assert "$defs" not in made.schema.parameters
    assert repr(made) == "Tool('work', effect='once')"
    named = Tool(lambda: None, name="it", description="")
    assert (named.name, named.schema.description, named.returns) == ("it", "", Any)
    assert Tool(functools.partial(work), name="p").schema.parameters["required"] == ["x"]
    assert (named.in_thread, made.in_thread) == (True, False)


async def test_outside_of_a_workflow_a_tool_is_its_function() -> None:
    made = Tool(work)
    assert await made(1) == 6
    assert await made.keyed("k")(1, y=4) == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": 5}, "name of a tool is 5: give text"),
        ({"description": 5}, "description of a tool is 5: give text"),
        ({"on_error": "ignore"}, "tool work: on_error is 'ignore': give one of report, raise"),
        ({"effect": "twice"}, "tool work: effect is 'twice': give one of pure, idempotent, once, transaction"),
        ({"in_doubt": "guess"}, "tool work: in_doubt is 'guess': give one of report, park"),
        ({"effect": "pure", "reconcile": reconcile}, "tool work: effect is pure: only a once tool"),
        ({"reconcile": 5}, "tool work: reconcile is 5: give a function"),
        ({"retry": 5, "effect": "pure"}, "tool work: retry is 5: give a holdfast Retry"),
        ({"retry": Retry()}, "tool work: effect is once: it cannot be retried"),
        ({"approval": 5}, "tool work: approval is 5: give a function"),
        ({"timeout": timedelta(0)}, "tool work: timeout is .*: give a positive timedelta"),
        ({"timeout": 5}, "tool work: timeout is 5: give a positive timedelta"),
        ({"errors": [5]}, "tool work: errors has 5: give classes of exceptions"),
        ({"errors": [BaseException]}, "errors has <class 'BaseException'>"),
        ({"undo": 5}, "tool work: undo is 5: give a function"),
        ({"sequential": 1}, "tool work: sequential is 1: give True or False"),
        ({"effect": "transaction"}, "tool work: effect is transaction: give it a parameter `connection`"),
    ],
)
def test_an_option_of_a_tool_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Tool(work, **options)


def test_the_options_of_a_tool_are_kept() -> None:
    retry, approval = Retry(max_tries=2), ApprovalRequest(reason="why")
    made = tool(
        name="n", effect="pure", retry=retry, timeout=SECOND, approval=approval, errors=[KeyError], undo=print,
        sequential=True, on_error="raise", in_doubt="park",
    )(work)  # fmt: skip
    assert (made.name, made.effect, made.timeout, made.errors, made.undo) == ("n", "pure", SECOND, (KeyError,), print)
    assert (made.sequential, made.on_error) == (True, "raise")
    assert (made.policy.retry, made.policy.approval, made.policy.in_doubt) == (retry, approval, "park")
    assert Tool(work, reconcile=reconcile).policy.reconcile is reconcile
    plain = Tool(work)
    assert (plain.sequential, plain.on_error, plain.timeout, plain.errors) == (False, "report", None, ())


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match="has no name: give the tool one with name="):
        Tool(lambda: None)
    with pytest.raises(DefinitionError, match="the function of a tool is 5: give a function"):
        Tool(5)  # type: ignore[arg-type]


def test_the_connection_of_a_transaction_is_not_shown() -> None:
    async def book(connection: Any, seat: int) -> None: ...

    made = Tool(book, effect="transaction")
    assert list(made.schema.parameters["properties"]) == ["seat"]
    assert list(Tool(book).schema.parameters["properties"]) == ["connection", "seat"]


def test_an_unknown_option_is_named_with_the_closest_one() -> None:
    with pytest.raises(DefinitionError, match=r"@tool has no option efect: did you mean effect\?"):
        tool(efect="pure")  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="@tool has no option qqq: it has name, description, effect"):
        tool(qqq=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("approval", "requested"),
    [
        (False, None),
        (True, ApprovalRequest()),
        (ApprovalRequest(reason="why"), ApprovalRequest(reason="why")),
        (lambda arguments: arguments["x"] > 5, None),
        (lambda arguments: arguments["x"] > 4, ApprovalRequest()),
        (lambda arguments: ApprovalRequest(reason=f"{arguments['x']}"), ApprovalRequest(reason="5")),
    ],
)
def test_what_a_person_has_to_approve(approval: Any, requested: ApprovalRequest | None) -> None:
    assert ToolPolicy(approval=approval).request_approval({"x": 5}) == requested


# -- calls ------------------------------------------------------------------------------------------------------------


class Request(CallRequest):
    """A call whose results are texts. Those of errors begin with `!`."""

    async def execute(self) -> str:
        return "done"

    def error_result(self, text: str) -> str:
        return f"!{text}"

    def reconciled_result(self, value: Any) -> str:
        return str(value)


def test_the_defaults_of_a_call() -> None:
    request = Request(call_id="1", tool="look", arguments={}, effect=Effect.PURE)
    assert (request.number, request.in_thread, request.approval, request.in_doubt) == (0, False, None, "report")
    assert (request.schema, request.error, request.reconcile) == (None, None, None)
    assert (request.expired_result("late"), request.denied_result("no")) == ("!late", "!no")
    assert request.replace_arguments({}) == "!The arguments of this call cannot be replaced. The tool was not called."
    assert request.is_error("!x") is False
    with pytest.raises(DefinitionError, match="tool look: its loop has no tools with the effect transaction"):
        request.value_result(5)


def test_the_outcome_of_a_call() -> None:
    request = Request(call_id="1", tool="look", arguments={}, effect=Effect.PURE)
    assert request.classify_outcome("x", None, waits=False) == "done"
    assert request.classify_outcome("x", None, waits=True) == "waiting"
    assert request.classify_outcome(None, ValueError(), waits=True) == "raised"


async def test_a_context_outside_of_a_run() -> None:
    context = ToolContext(
        info=RunInfo(run_id="r", agent_name="a", inputs={"n": 1}), step=2, call_id="1", tool="t", arguments={}
    )
    assert (context.run_id, context.inputs) == ("r", {"n": 1})
    token = context.completion_token
    assert token == context.completion_token
    assert token.startswith("r~2.")
    same = ToolContext(info=INFO, step=2, call_id="1", tool="u", arguments=None)
    other = ToolContext(info=INFO, step=3, call_id="1", tool="t", arguments={})
    assert context.idempotency_key == same.idempotency_key != other.idempotency_key
    assert len(context.idempotency_key) == 35
    with pytest.raises(RunError, match="this call cannot start child runs"):
        await context.run("a")
    with pytest.raises(RunError, match="works only inside a tool"):
        current_call()


# -- waiting tools ----------------------------------------------------------------------------------------------------


async def suspend(call: Any) -> Suspend:
    clock = ManualClock()
    token = _CURRENT_CALL.set(ToolContext(info=INFO, step=1, call_id="1", tool="t", arguments={}, clock=clock))
    try:
        with pytest.raises(Suspend) as raised:
            await call()
    finally:
        _CURRENT_CALL.reset(token)
    return raised.value


async def test_a_tool_waits_for_a_time_a_signal_or_a_person() -> None:
    now = ManualClock().now()
    for seconds in (5, 5 * SECOND):
        timer = await suspend(functools.partial(sleep.function, seconds))
        assert (timer.kind, timer.reason, timer.expires_at) == ("timer", "sleeps", now + 5 * SECOND)
    assert (await suspend(functools.partial(sleep.function, -5))).expires_at == now
    assert (await suspend(functools.partial(sleep.function, until=now))).expires_at == now
    signal = await suspend(functools.partial(wait_for.function, "go", 5))
    assert (signal.kind, signal.topic, signal.reason) == ("signal", "signal:go", "signal go")
    assert signal.expires_at == now + 5 * SECOND
    assert (await suspend(functools.partial(wait_for.function, "go"))).expires_at is None
    question = await suspend(functools.partial(ask_person.function, "why?", ["a", "b"]))
    assert (question.kind, question.reason, question.expires_at) == ("question", "why? (a, b)", None)
    assert (await suspend(functools.partial(ask_person.function, "why?", []))).reason == "why?"


async def test_a_sleep_needs_one_time_with_a_zone() -> None:
    aware = datetime(2030, 1, 1, tzinfo=UTC)
    for arguments in ((), (5, aware)):
        with pytest.raises(ValueError, match="give either seconds or until"):
            await sleep.function(*arguments)
    with pytest.raises(ValueError, match="give until with a time zone"):
        await sleep.function(until=aware.replace(tzinfo=None))


# -- agents as tools --------------------------------------------------------------------------------------------------


def make_agent(name: str) -> Agent:
    return Agent(name=name, model=MODEL)


async def test_a_run_may_call_neither_itself_nor_one_above_it() -> None:
    agents = [make_agent(name) for name in ("a", "b", "c", "d")]
    info = RunInfo(run_id="r", agent_name="a", lineage=("b", "x"))
    assert [each.name for each in await AgentToolProvider(agents).tools(info)] == ["c", "d"]
    allowed = AgentToolProvider(agents, allowed=lambda info: ["a", "d"])
    assert [each.name for each in await allowed.tools(info)] == ["d"]
    assert await AgentToolProvider(agents, max_depth=2).tools(info) == ()
    [offered] = await allowed.tools(info)
    assert (offered.effect, offered.schema.description) == (
        "idempotent", "Hand a task over to the agent d. Say all it needs to know.",
    )  # fmt: skip
    deepest = RunInfo(run_id="r", agent_name="a", lineage=("x", "y"))
    assert len(await AgentToolProvider(agents).tools(deepest)) == 3
    assert await AgentToolProvider(agents).tools(RunInfo(run_id="r", agent_name="a", lineage=("x", "y", "z"))) == ()


def test_the_names_of_agents_as_tools() -> None:
    assert to_tool_name("my agent/é_9-") == "my_agent___9-"
    assert to_tool_name("x" * 65) == "x" * 64
    with pytest.raises(DefinitionError, match="two agents would be the tool 'a_b': rename one of them"):
        AgentToolProvider([make_agent("a b"), make_agent("a/b")])


async def test_a_run_starts_at_most_its_number_of_children() -> None:
    [offered] = await AgentToolProvider([make_agent("child")], max_children=2).tools(INFO)
    texts = ["works only inside a tool"] * 2 + ["has started its 2 child runs: do the rest without them"]
    for text in texts:
        with pytest.raises((RunError, RuntimeError), match=text):
            await offered.call({"prompt": "x"})


# -- agents -----------------------------------------------------------------------------------------------------------


async def one_argument(messages: Sequence[Message]) -> Reply:
    return Reply()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": 5}, "the name of an agent is 5: give text"),
        ({"name": ""}, "an agent needs a name"),
        ({"instructions": None}, "agent a: instructions is None: give text"),
        ({"agent_id": 5}, "agent a: agent_id is 5: give text"),
        ({"model_tier": 5}, "agent a: model_tier is 5: give text"),
        ({"tools": 5}, "agent a: tools is 5: give a list of tools"),
        ({"phases": 5}, "agent a: phases is 5: give a list of Phase"),
        ({"phases": ["plan"]}, "agent a: a phase is 'plan': give a Phase"),
        ({"bounds": 5}, "agent a: bounds is 5: give a Bounds"),
        ({"missing_tools": "guess"}, "agent a: missing_tools is 'guess': give one of defer, report, park"),
        ({"model": 5}, "agent a: model is 5: give a function"),
        ({"compact": 5}, "agent a: compact is 5: give a function"),
        ({"model": one_argument}, "agent a: its model takes other arguments"),
        ({"retry": 5}, "agent a: retry is 5: give a Retry"),
        ({"model": None}, "agent a: no model; give it one, or one to each of its phases"),
        ({"tools": [work, work]}, "two tools are named 'work'"),
        ({"model": None, "phases": [Phase(name="p", model=MODEL), Phase(name="q")]}, "agent a: no model"),
        ({"tools": [work, work], "phases": [Phase(name="p", agent=make_agent("b"))]}, "two tools are named 'work'"),
        ({"tools": [work], "phases": [Phase(name="p", tools=["work", "fly"])]}, "no tool 'fly'; known: work"),
    ],
)
def test_an_agent_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Agent(**{"name": "a", "model": MODEL, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": 5}, "the name of a phase is 5: give text"),
        ({"prompt": 5}, "the prompt of phase p is 5: give a function"),
        ({"bounds": 5}, "bounds of phase p is 5: give a Bounds"),
        ({"agent": "b"}, "the agent of phase p is 'b': give the agent or the workflow itself"),
        ({"agent": make_agent("b"), "model": MODEL, "tools": []}, "phase p: give model, tools to its agent b"),
        ({"agent": Agent(name="b", model=MODEL, phases=[Phase(name="q")])}, "phase p: its agent b has phases too"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_phase_that_makes_no_sense_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Phase(**{"name": "p", **options})


def test_a_phase_takes_what_it_lacks_from_its_agent() -> None:
    other, bounds = ScriptedModel("x"), Bounds(max_repeats=2)
    agent = Agent(name="a", model=MODEL, instructions="be brief", tools=[work], missing_tools="park")
    own = agent.profile()
    assert (own.instructions, own.model, list(own.tools), own.max_repeats) == ("be brief", MODEL, ["work"], 5)
    same = agent.profile(Phase(name="p"))
    assert (same.instructions, same.model, list(same.tools)) == ("be brief", MODEL, ["work"])
    assert (same.bounds, same.phase_bounds, same.missing_tools) == (agent.bounds, None, "park")
    changed = agent.profile(Phase(name="p", instructions="", tools=[], model=other, bounds=bounds))
    assert (changed.instructions, changed.model, dict(changed.tools)) == ("", other, {})
    assert (changed.phase_bounds, changed.max_repeats) == (bounds, 2)
    helper = Agent(name="b", model=other, bounds=bounds)
    inner = agent.profile(Phase(name="p", agent=helper))
    assert (inner.model, inner.bounds, inner.phase_bounds) == (other, bounds, bounds)
    named = agent.profile(Phase(name="p", tools=["work", make_agent]))
    assert list(named.tools) == ["work", "make_agent"]
    assert named.tools["work"] is own.tools["work"]
    assert inner.with_tools(()) is inner
    assert list(inner.with_tools([Tool(work)]).tools) == ["work"]


PARTS = [{"type": "image"}]


@pytest.mark.parametrize(
    ("template", "prompt", "rendered"),
    [
        ("$prompt", "go", "go"),
        ("$plan of $size, $unknown: $prompt", "go", "the plan of 3, $unknown: go"),
        (lambda info, finished: f"{info.run_id} {len(finished)}", "go", "r 1"),
        ("$prompt", PARTS, PARTS),
        ("see $prompt now", PARTS, ["see ", *PARTS, " now"]),
        ("$prompt$prompt", PARTS, [*PARTS, *PARTS]),
        ("only $plan", PARTS, "only the plan"),
    ],
)
def test_the_prompt_of_a_phase_is_rendered(template: Any, prompt: Any, rendered: Any) -> None:
    info = RunInfo(run_id="r", agent_name="a", prompt=prompt, inputs={"size": 3, "plan": "hidden"})
    finished = [PhaseOutput(name="plan", output="the plan", steps=1)]
    assert Phase(name="p", prompt=template).render(info, finished) == rendered


# -- tiers ------------------------------------------------------------------------------------------------------------


async def test_a_chain_asks_the_next_model_after_an_error() -> None:
    broken, good, unused = ScriptedModel(ValueError("one")), ScriptedModel("two"), ScriptedModel("three")
    assert (await failover(broken, good, unused)([], [])).text == "two"
    assert unused.requests == []
    with pytest.raises(KeyError):
        await failover(ScriptedModel(ValueError("one")), ScriptedModel(KeyError("two")))([], [])
    with pytest.raises(DefinitionError, match="a chain needs at least one model"):
        failover()


async def test_an_unknown_tier_is_the_default_one() -> None:
    tiers = ModelTiers({"fast": ScriptedModel("f"), "smart": [ScriptedModel("s")]}, default="smart")
    assert (await tiers.model("fast")([], [])).text == "f"
    assert (await tiers.model("other")([], [])).text == "s"
    with pytest.raises(DefinitionError, match="no model tier 'x'; known: fast"):
        ModelTiers({"fast": MODEL}).model("x")
    with pytest.raises(DefinitionError, match="no model tier 'x'; known: none"):
        ModelTiers({}).model("x")
    with pytest.raises(DefinitionError, match="the default tier 'x' is not among fast"):
        ModelTiers({"fast": MODEL}, default="x")


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"priority": 11}, "priority is 11: give a whole number from -10 to 10"),
        ({"priority": -11}, "priority is -11: give a whole number from -10 to 10"),
        ({"priority": True}, "priority is True"),
        ({"concurrency_key": "k" * 201}, "it has at most 200 characters"),
        ({"labels": {"a": "\0"}}, "the label a is '.x00': it has to be text"),
        ({"labels": {"\0": "a"}}, "a label is '.x00': it has to be text"),
        ({"tenant": "\0"}, "tenant is '.x00': it has to be text"),
        ({"conversation": 5}, "conversation is 5: it has to be text"),
        ({"forked_from": ""}, "cannot be a run id"),
        ({"started_by": "a b"}, "cannot be a run id"),
    ],
    ids=repr,
)
def test_an_identity_that_no_store_can_keep_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        RunInfo(**{"run_id": "r", "agent_name": "a", **fields})


def test_the_identity_of_a_run() -> None:
    for priority in (-10, 10):
        assert RunInfo(run_id="r", agent_name="a", priority=priority).priority == priority
    assert RunInfo(run_id="r", agent_name="a", concurrency_key="k" * MAX_KEY_LENGTH).concurrency_key == "k" * 200
    assert RunInfo(run_id="r", agent_name="a", prompt=5).prompt == ""  # type: ignore[arg-type]
    child = RunInfo(run_id="r", agent_name="a", parent_run_id="p", caller_id="c", labels={"l": "1"})
    assert (child.shares_parent_slot, child.starter) == (True, None)
    assert child.inherited_options == {"caller_id": "c", "channel_id": "", "guild_id": "", "labels": {"l": "1"}}
    assert child.indexed_labels == {"l": "1"}
    in_background = RunInfo(run_id="r", agent_name="a", parent_run_id="p", background=True, started_by="s")
    assert (in_background.shares_parent_slot, in_background.starter) == (False, "p")
    detached = RunInfo(run_id="r", agent_name="a", started_by="s", forked_from="f")
    assert (detached.shares_parent_slot, detached.starter) == (False, "s")
    assert detached.indexed_labels == {"holdfast.forked_from": "f"}


def test_the_summary_of_a_run_is_short() -> None:
    info = RunInfo.create("a", "x" * 201, run_id="r", inputs={"n": 1})
    summary = info.summarize()
    assert (summary.prompt, summary.inputs, len(summary.request_digest)) == ("x" * 200, {}, 32)
    assert (info.loop, info.agent_name, info.request_digest) == ("", "a", "")
    assert RunInfo.create(make_agent("b"), "x").loop == "native"
    assert RunInfo.create("a", "x").run_id != RunInfo.create("a", "x").run_id
    with pytest.raises(DefinitionError, match=r"labels is \[\]: give a mapping from text to text"):
        RunInfo.create("a", "x", labels=[])  # type: ignore[arg-type]
    assert RunInfo.create("a", "x", labels=None).labels == {}


class Source:
    """An agent that is built for each run, with some of the optional attributes."""

    name, agent_id, description = "s", "v2", "Finds things."


def test_the_attributes_of_a_source() -> None:
    details = AgentDetails.from_source(Source())  # type: ignore[arg-type]
    assert (details.agent_id, details.description, details.model_tier, details.loop) == (
        "v2",
        "Finds things.",
        "",
        None,
    )


async def test_an_agent_builds_itself() -> None:
    agent = make_agent("a")
    assert await agent.build(INFO) is agent
    assert Agent(name="a", model=iter, phases=[Phase(name="p")]).phases == (Phase(name="p"),), "it has no signature"  # type: ignore[arg-type]
    assert (await Executor().run(agent, "go")).output == "done"
