"""Personas and skills over every kind of store, lowered into agents and called as tools."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Reply, RunInfo, tool
from holdfast.batteries.definitions.versions import (
    DefinitionNotFound,
    DefinitionsUnavailable,
    MalformedDefinition,
    VersionTable,
)
from holdfast.batteries.persona import (
    Persona,
    PersonaError,
    PersonaPhase,
    Personas,
    allowed_by,
    export_persona,
    import_persona,
)
from holdfast.batteries.skill import Parameter, Skill, SkillError, Skills, export_skill, import_skill
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Ports
from holdfast.core.agents.agent import ModelTiers, failover
from holdfast.core.agents.agent_tools import AgentToolProvider
from holdfast.core.errors import DefinitionError, MissingDefinition
from holdfast.db.sqlite_tables import MemoryTables, SqliteTables
from holdfast.db.urls import tables_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@tool(effect="pure")
async def look() -> str:
    return "seen"


@pytest.fixture
async def store(battery_url: str) -> AsyncIterator[VersionTable]:
    made = VersionTable("thing", tables_from_url(battery_url))
    await made.open()
    yield made
    await made.close()


class TestVersionTable:
    async def test_versions_count_up_and_stay(self, store: VersionTable) -> None:
        assert (await store.save("al", "x", b'{"v":1}', NOW)).number == 1
        assert (await store.save("al", "x", b'{"v":2}', NOW)).number == 2
        assert (await store.save("bo", "x", b'{"v":1}', NOW)).number == 1
        assert (await store.get("al", "x")).body == b'{"v":2}'
        assert (await store.get("al", "x", 1)).body == b'{"v":1}'
        assert [version.number for version in await store.history("al", "x")] == [1, 2]

    async def test_versions_saved_at_once_get_numbers_of_their_own(self, store: VersionTable) -> None:
        saved = await asyncio.gather(*(store.save("al", "x", b"{}", NOW) for _ in range(10)))
        assert sorted(version.number for version in saved) == list(range(1, 11))

    async def test_a_missing_definition_is_not_found(self, store: VersionTable) -> None:
        await store.save("al", "x", b"{}", NOW)
        for missing in (
            store.get("al", "y"),
            store.get("al", "x", 2),
            store.get("al", "x", 0),
            store.history("bo", "x"),
            store.share("al", "y", "bo"),
            store.remove("al", "y"),
        ):
            with pytest.raises(DefinitionNotFound):
                await missing
        for version, text in ((None, "no thing al/y: it was"), (2, "no thing al/y version 2: it was")):
            with pytest.raises(DefinitionNotFound, match=text) as found:
                await store.get("al", "y", version)
            error = found.value
            assert (error.kind, error.owner, error.name, error.version) == ("thing", "al", "y", version)

    async def test_a_reader_sees_its_own_and_what_is_shared(self, store: VersionTable) -> None:
        for owner, name in (("al", "private"), ("al", "for bo"), ("al", "for all"), ("bo", "own")):
            await store.save(owner, name, b"{}", NOW)
        await store.share("al", "for bo", "bo")
        await store.share("al", "for bo", "bo")
        await store.share("al", "for all", "*")

        async def seen(reader: str | None) -> list[str]:
            return [version.name for version in await store.newest(reader)]

        assert await seen("bo") == ["for all", "for bo", "own"]
        assert await seen("cy") == ["for all"]
        assert len(await seen(None)) == 4

    async def test_a_removed_definition_loses_its_versions_and_readers(self, store: VersionTable) -> None:
        await store.save("al", "x", b"{}", NOW)
        await store.share("al", "x", "bo")
        await store.remove("al", "x")
        assert await store.newest("bo") == []
        await store.save("al", "x", b"{}", NOW)
        assert await store.newest("bo") == []

    async def test_no_number_is_used_twice(self, store: VersionTable) -> None:
        for number in (1, 2):
            assert (await store.save("al", "x", b'"old"', NOW)).number == number
        for number in (3, 4):
            await store.remove("al", "x")
            assert (await store.save("al", "x", b'"new"', NOW)).number == number
        assert [version.number for version in await store.history("al", "x")] == [4]
        for gone in (1, 2, 3):
            with pytest.raises(DefinitionNotFound):
                await store.get("al", "x", gone)


# -- personas ---------------------------------------------------------------------------------------------------------


def personas(model: ScriptedModel, **tiers: ScriptedModel) -> Personas:
    return Personas(ModelTiers({"fast": model, **tiers}, default="fast"), [look], tables=MemoryTables())


async def test_an_agent_built_from_a_persona_runs() -> None:
    model = ScriptedModel(tool_reply(call("c1", "look")), "done")
    collection = personas(model)
    await collection.save(Persona(owner="al", name="scout", instructions="Look.", tools=["look"]))
    source = await collection.source("al", "scout")
    result = await SimulatedHost().executor.run(source, "go")
    assert result.output == "done"
    assert model.requests[0][0].text == "Look."  # type: ignore[union-attr]


async def test_a_removed_persona_is_not_found() -> None:
    collection = personas(ScriptedModel("done"))
    await collection.save(Persona(owner="al", name="scout", instructions="Look."))
    await collection.remove("al", "scout")
    with pytest.raises(DefinitionNotFound):
        await collection.source("al", "scout")
    assert list(await collection.newest()) == []


async def test_a_shared_persona_is_found_by_its_readers_and_has_its_history() -> None:
    collection = personas(ScriptedModel("done"))
    texts = ("Look.", "Look twice.")
    saved = [await collection.save(Persona(owner="al", name="scout", instructions=text)) for text in texts]
    assert saved == [1, 2]
    assert await collection.newest("bo") == []
    await collection.share("al", "scout", "bo")
    assert [found.instructions for found in await collection.newest("bo")] == ["Look twice."]
    assert await collection.newest("cy") == []
    await collection.share("al", "scout")
    assert [found.name for found in await collection.newest("cy")] == ["scout"]
    assert [version.number for version in await collection.history("al", "scout")] == [1, 2]


async def test_a_resumed_run_keeps_the_version_it_started_with() -> None:
    store, reached, second = MemoryStore(), asyncio.Event(), ScriptedModel("done", "done")
    collection = Personas(
        ModelTiers({"old": make_hanging_model(reached), "new": second}), [look], tables=MemoryTables()
    )
    first = Persona(owner="al", name="p", instructions="one", model_tier="old")
    await interrupt_run(collection, first, store, reached)
    await collection.save(Persona(owner="al", name="p", instructions="two", model_tier="new"))
    newest = await collection.source("al", "p")
    two = SimulatedHost(store)
    resumption = await two.claim(newest, "r")
    assert resumption.info.agent_id == "al/p@1"
    assert (await newest.build(resumption.info)).model_tier == "old"
    fresh = await two.executor.run(newest, "go")
    assert fresh.output == "done"
    assert second.requests[0][0].text == "two"  # type: ignore[union-attr]


async def interrupt_run(collection: Personas, persona: Persona, store: MemoryStore, reached: asyncio.Event) -> None:
    """Start run `r` of `persona` and crash its host once its model has set `reached`."""
    await collection.save(persona)
    one = SimulatedHost(store)
    source = await collection.source(persona.owner, persona.name)
    task = asyncio.create_task(one.executor.run(source, "go", run_id="r"))
    await reached.wait()
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def make_hanging_model(reached: asyncio.Event) -> ScriptedModel:
    async def hang(messages: object) -> Reply:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    return ScriptedModel(hang)


async def test_a_new_run_uses_the_newest_version() -> None:
    definitions, model = MemoryTables(), ScriptedModel("done")
    here, elsewhere = (Personas(ModelTiers({"fast": model}, default="fast"), tables=definitions) for _ in range(2))
    await here.save(Persona(owner="al", name="p", instructions="one", palette=["a"]))
    source = await here.source("al", "p")
    allowed, info = allowed_by([source]), RunInfo(run_id="r", agent_name="al/p")
    async with App([source], "memory:") as app:
        await here.save(Persona(owner="al", name="p", instructions="two", palette=["b"]))
        await app.run("al/p", "go")
        assert allowed(info) == ["b"]
        await elsewhere.save(Persona(owner="al", name="p", instructions="three"))
        await here.get("al", "p", 1)
        await app.run("al/p", "go")
        await here.get("al", "p")
        await app.run("al/p", "go")
    assert [asked[0].text for asked in model.requests] == ["two", "two", "three"]  # type: ignore[union-attr]


async def test_a_definition_of_another_process_is_known_when_the_repository_opens_and_30_s_after_it_was_saved() -> None:
    clock, definitions, tiers = (
        ManualClock(),
        MemoryTables(),
        ModelTiers({"fast": ScriptedModel("done")}, default="fast"),
    )
    here, elsewhere = (Personas(tiers, tables=definitions, clock=clock) for _ in range(2))
    await elsewhere.save(Persona(owner="al", name="first"))
    await here.open(definitions)
    assert [*here.agents] == ["al/first"]
    await elsewhere.save(Persona(owner="al", name="second"))
    await clock.advance(timedelta(seconds=29))
    assert [*here.agents] == ["al/first"]
    await clock.advance(timedelta(seconds=1))
    assert [*here.agents] == ["al/first", "al/second"]
    await here.close()
    await clock.advance(timedelta(seconds=1))
    assert clock.waiting == 0


async def test_a_run_whose_persona_names_a_removed_tool_resumes_in_a_process_that_has_it() -> None:
    runs, definitions, reached = MemoryStore(), MemoryTables(), asyncio.Event()
    first = Personas(ModelTiers({"fast": make_hanging_model(reached)}, default="fast"), [look], tables=definitions)
    await interrupt_run(first, Persona(owner="al", name="p", tools=["look"]), runs, reached)

    without = Personas(ModelTiers({"fast": ScriptedModel("done")}, default="fast"), tables=definitions)
    two = SimulatedHost(runs)
    with pytest.raises(MissingDefinition, match="look"):
        await two.resume(await without.source("al", "p"), "r")
    assert await two.get_statuses() == {"r": RunStatus.INTERRUPTED}
    with fails_with(PersonaError, match="look"):
        await two.executor.run(await without.source("al", "p"), "go", run_id="new")
    assert await two.get_statuses() == {"r": RunStatus.INTERRUPTED}, "a new run's error is its end"

    having = Personas(ModelTiers({"fast": ScriptedModel("done")}, default="fast"), [look], tables=definitions)
    assert (await SimulatedHost(runs).resume(await having.source("al", "p"), "r")).output == "done"


@pytest.mark.parametrize(
    ("break_sql", "repair_sql", "message"),
    [
        ("BEGIN EXCLUSIVE", "ROLLBACK", "locked"),
        # As if a newer version of holdfast had migrated the tables.
        (
            "UPDATE holdfast_battery SET version = version + 1",
            "UPDATE holdfast_battery SET version = version - 1",
            "upgrade holdfast",
        ),
    ],
)
async def test_a_run_whose_definition_cannot_be_read_is_interrupted_and_resumes_later(
    break_sql: str, repair_sql: str, message: str, tmp_path: Path
) -> None:
    def stored(model: ScriptedModel) -> Personas:
        tables = SqliteTables(tmp_path / "definitions.db", timeout=timedelta(milliseconds=1))
        return Personas(ModelTiers({"fast": model}, default="fast"), tables=tables)

    runs, reached = MemoryStore(), asyncio.Event()
    first = stored(make_hanging_model(reached))
    await interrupt_run(first, Persona(owner="al", name="p"), runs, reached)
    await first.close()

    again, two = stored(ScriptedModel("done")), SimulatedHost(runs)
    source = await again.source("al", "p")
    await again.close()  # it opens its tables again when it needs them
    other = apsw.Connection(str(tmp_path / "definitions.db"))
    other.pragma("locking_mode", "EXCLUSIVE" if message == "locked" else "NORMAL")
    other.execute(break_sql)
    with pytest.raises(DefinitionsUnavailable, match=message):
        await two.resume(source, "r")
    assert await two.get_statuses() == {"r": RunStatus.INTERRUPTED}
    other.execute(repair_sql)
    other.close()
    assert (await two.resume(source, "r")).output == "done"
    await again.close()


async def test_phases_of_a_persona_have_their_own_models_and_tools() -> None:
    plain, clever = ScriptedModel("draft"), ScriptedModel("final")
    collection = personas(plain, smart=clever)
    edit = PersonaPhase(name="edit", prompt="Edit: $draft", model_tier="smart", tools=[])
    await collection.save(Persona(owner="al", name="writer", phases=[PersonaPhase(name="draft"), edit]))
    result = await SimulatedHost().executor.run(await collection.source("al", "writer"), "go")
    assert result.output == "final"
    assert clever.requests[0][-1].text == "Edit: draft"  # type: ignore[union-attr]
    assert clever.offered_tools[0] == ()


@pytest.mark.parametrize("broken", [{"tools": ["fly"]}, {"phases": [PersonaPhase(name="p", tools=["fly"])]}])
async def test_a_persona_that_names_an_unknown_tool_is_not_stored(broken: dict[str, object]) -> None:
    collection = personas(ScriptedModel("x"))
    with pytest.raises(PersonaError, match=r"\['fly'\]; known: look"):
        await collection.save(Persona(owner="al", name="p", **broken))  # type: ignore[arg-type]
    assert await collection.newest() == []


async def test_an_unknown_tier_without_a_default_is_refused() -> None:
    with pytest.raises(DefinitionError, match="genius"):
        await Personas(ModelTiers({"fast": ScriptedModel("x")})).save(
            Persona(owner="al", name="p", model_tier="genius")
        )


@pytest.mark.parametrize("name", ["", "a/b", "a@1"])
def test_an_empty_name_and_one_with_a_separator_are_refused(name: str) -> None:
    for make in (lambda: Persona(owner="al", name=name), lambda: Skill(owner=name, name="x")):
        with pytest.raises(MalformedDefinition):
            make()


_WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@given(_WORDS, _WORDS, st.lists(_WORDS, max_size=3))
def test_a_persona_survives_a_markdown_round_trip(description: str, tier: str, tools: list[str]) -> None:
    persona = Persona(
        owner="al",
        name="p",
        description=description,
        model_tier=tier,
        tools=tools,
        schedule="0 * * * *",
        instructions="# Be\n\n---\n\n- kind",
        palette=["x/y"],
        phases=[PersonaPhase(name=description, tools=None)],
    )
    assert import_persona(export_persona(persona)) == persona


def test_a_document_may_have_windows_line_endings_and_a_text_keeps_its_own() -> None:
    persona = Persona(owner="al", name="p", description="d", instructions="one\n\ntwo")
    assert import_persona(export_persona(persona).replace("\n", "\r\n")) == persona
    mixed = Persona(owner="al", name="p", instructions="one\r\ntwo")
    assert import_persona(export_persona(mixed)) == mixed


@pytest.mark.parametrize(
    "document", ["", "no front matter", "---\nowner: al\n", "---\n- a\n---\n", "---\nowner: 3\n---\nx"]
)
def test_an_invalid_document_is_refused(document: str) -> None:
    for read in (import_persona, import_skill):
        with pytest.raises(MalformedDefinition):
            read(document)


def test_text_before_the_front_matter_is_refused() -> None:
    document = export_persona(Persona(owner="al", name="p", instructions="Look."))
    with pytest.raises(MalformedDefinition, match="no front matter"):
        import_persona(f"A persona:\n{document}")


# -- skills, agent tools, tiers ---------------------------------------------------------------------------------------


SKILL = Skill(
    owner="al",
    name="sum up",
    description="Sums a text up.",
    parameters=[Parameter(name="text"), Parameter(name="words", type="integer", required=False)],
    procedure="Read it.\nSum it up.",
)


async def test_a_skill_is_a_tool_whose_call_is_a_child_run() -> None:
    model = ScriptedModel("short")
    skills = Skills(ModelTiers({"fast": model}, default="fast"), tables=MemoryTables())
    await skills.save(SKILL)
    sum_up = await skills.tool("al", "sum up")
    assert sum_up.schema.name == "al_sum_up"
    assert sum_up.schema.parameters["required"] == ["text"]
    properties = sum_up.schema.parameters["properties"]
    assert properties["text"]["type"] == "string"
    assert "null" in str(properties["words"])
    assert sum_up.schema.description == "Sums a text up."
    assert (await skills.source("al", "sum up")).description == "Sums a text up."
    caller = Agent(
        name="caller",
        tools=[sum_up],
        model=ScriptedModel(
            tool_reply(call("c1", "al_sum_up", text="long", words=3), call("c2", "al_sum_up", text="other")), "done"
        ),
    )
    result = await SimulatedHost().executor.run(caller, "go")
    assert [message.content for message in result.messages[-3:-1]] == ["short", "short"]
    asked = {messages[-1].text for messages in model.requests}  # type: ignore[union-attr]
    assert asked == {"text: long\nwords: 3", "text: other"}


async def test_a_run_is_offered_all_skills_except_those_above_it_down_to_the_third_level() -> None:
    skills = Skills(ModelTiers({"fast": ScriptedModel("short")}, default="fast"), tables=MemoryTables())
    for name in ("x", "y", "z"):
        await skills.save(Skill(owner="al", name=name))

    async def offer(agent: str, *lineage: str) -> list[str]:
        info = RunInfo(run_id="r", agent_name=agent, lineage=lineage)
        return [each.name for each in await skills.tools(info)]

    assert await offer("a") == ["al_x", "al_y", "al_z"]
    assert await offer("al/y", "a", "al/x") == ["al_z"]
    assert await offer("al/z", "a", "al/x", "al/y") == []
    assert await offer("b", "a", "c", "d") == [], "it is too deep"


async def test_a_skill_survives_a_markdown_round_trip() -> None:
    assert import_skill(export_skill(SKILL)) == SKILL


async def test_a_skill_that_names_an_unknown_tool_is_not_stored() -> None:
    skills = Skills(ModelTiers({"fast": ScriptedModel("x")}, default="fast"), tables=MemoryTables())
    with pytest.raises(SkillError, match=r"\['fly'\]; known: none"):
        await skills.save(Skill(owner="al", name="s", tools=["fly"]))


def test_a_parameter_that_is_no_identifier_is_refused() -> None:
    with pytest.raises(MalformedDefinition, match="'two words' cannot be a parameter"):
        Skill(owner="al", name="s", parameters=[Parameter(name="two words")])


@pytest.mark.parametrize("names", [["class"], ["a", "a"], ["__a"]])
async def test_a_skill_that_cannot_be_a_tool_is_not_stored(names: list[str]) -> None:
    skills = Skills(ModelTiers({"fast": ScriptedModel("x")}, default="fast"), tables=MemoryTables())
    with pytest.raises(SkillError, match=names[0]):
        await skills.save(Skill(owner="al", name="s", parameters=[Parameter(name=name) for name in names]))
    assert await skills.newest() == []


async def test_agents_may_call_each_other_but_never_recursively_nor_too_deep() -> None:
    offered: dict[str, tuple[str, ...]] = {}

    def recording_agent(name: str, *turns: Reply | str) -> Agent:
        script = ScriptedModel(*turns)

        async def model(messages: object, tools: object) -> Reply:
            offered[name] = tuple(tool.name for tool in tools)  # type: ignore[attr-defined]
            return await script(messages, tools)  # type: ignore[arg-type]

        return Agent(name=name, model=model)

    a = recording_agent("a", tool_reply(call("c1", "b", prompt="x")), "done")
    b = recording_agent("b", tool_reply(call("c1", "c", prompt="y")), "b says")
    c = recording_agent("c", "c says")
    provider = AgentToolProvider([a, b, c], max_depth=2)
    result = await SimulatedHost(ports=Ports(extra_tools=provider)).executor.run(a, "go")
    assert offered == {"a": ("b", "c"), "b": ("c",), "c": ()}
    assert result.messages[-2].content == "b says"


async def test_the_number_of_children_is_limited() -> None:
    helper = Agent(name="helper", model=ScriptedModel("ok"))
    many = [call(f"c{number}", "helper", prompt=str(number)) for number in range(5)]
    parent = Agent(name="parent", model=ScriptedModel(tool_reply(*many), "done"))
    provider = AgentToolProvider([helper], max_children=3)
    result = await SimulatedHost(ports=Ports(extra_tools=provider)).executor.run(parent, "go")
    results = [message for message in result.messages if getattr(message, "tool", "") == "helper"]
    assert sum(not message.error for message in results) == 3
    assert "3 child runs" in str([message.content for message in results if message.error])


async def test_a_persona_may_call_the_agents_that_its_palette_names() -> None:
    collection = personas(ScriptedModel(tool_reply(call("c1", "helper", prompt="x")), "done"))
    await collection.save(Persona(owner="al", name="boss", palette=["helper"]))
    boss = await collection.source("al", "boss")
    agents = [Agent(name="helper", model=ScriptedModel("ok")), Agent(name="secret", model=ScriptedModel("no"))]
    provider = AgentToolProvider(agents, allowed=allowed_by([boss]))
    names = [each.name for each in await provider.tools(RunInfo(run_id="r", agent_name=boss.name))]
    assert names == ["helper"]
    assert (await SimulatedHost(ports=Ports(extra_tools=provider)).executor.run(boss, "go")).output == "done"


async def test_a_chain_asks_the_next_model_when_one_fails() -> None:
    model = failover(ScriptedModel(OSError("down")), ScriptedModel(OSError("down")), ScriptedModel("third"))
    assert (await SimulatedHost().executor.run(Agent(name="a", model=model), "go")).output == "third"


async def test_the_error_of_a_chain_is_that_of_its_last_model() -> None:
    model = failover(ScriptedModel(OSError("first")), ScriptedModel(ValueError("last")))
    with fails_with(ValueError, match="last"):
        await SimulatedHost().executor.run(Agent(name="a", model=model), "go")


def test_an_empty_chain_and_an_unknown_default_are_refused() -> None:
    with pytest.raises(DefinitionError):
        failover()
    with pytest.raises(DefinitionError):
        ModelTiers({"fast": []})
    with pytest.raises(DefinitionError):
        ModelTiers({"fast": ScriptedModel("x")}, default="smart")
