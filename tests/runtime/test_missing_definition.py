"""A resumed run whose agent cannot be built is retried a few times, and then parked with the reason."""

from collections.abc import Sequence

from tests.runtime.conftest import IDLE_WORKER
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core.errors import DefinitionError, MissingDefinition
from holdfast.core.execution.lifecycle import MAX_BUILD_FAILURES
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Persona:
    """An agent that is built for each run, from a definition that may be missing."""

    name = "persona"

    def __init__(self) -> None:
        self.missing = True
        self.model = ScriptedModel("done")

    async def build(self, info: RunInfo) -> Agent:
        if self.missing:
            raise DefinitionError("there is no persona of this name")
        return Agent(name=self.name, model=self.model)


class Host:
    """An App that recovers on request, with its own clock."""

    def __init__(self, *agents: Persona | Agent) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.app = App(agents, self.store, worker=IDLE_WORKER, clock=self.clock)

    async def try_again(self) -> RunRecord:
        """Wait for the delay between two attempts, and recover."""
        await self.clock.advance(MissingDefinition.retry_after)
        await self.app.recover()
        return await get_record(self.store, "r")


async def test_it_is_parked_with_the_reason_and_gets_as_many_attempts_after_an_unpark() -> None:
    persona = Persona()
    host = Host(persona)
    async with host.app as app:
        await app.submit(persona, "go", run_id="r")
        for _ in range(2):
            for _ in range(MAX_BUILD_FAILURES - 1):
                record = await host.try_again()
                assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 0)
            record = await host.try_again()
            assert record.status is RunStatus.PARKED
            assert record.reason == (
                f"missing definition: its agent could not be built {MAX_BUILD_FAILURES} times: "
                "there is no persona of this name"
            )
            await app.unpark("r")
        persona.missing = False
        await host.try_again()
        assert (await app.result("r")).output == "done"


async def test_an_attempt_that_builds_the_agent_clears_the_count() -> None:
    persona = Persona()
    host = Host(persona)

    async def be_interrupted(messages: Sequence[Message]) -> Reply:
        persona.missing = True
        raise MissingDefinition("for another reason")

    persona.model = ScriptedModel(be_interrupted)
    async with host.app as app:
        await app.submit(persona, "go", run_id="r")
        for _ in range(2):
            for _ in range(MAX_BUILD_FAILURES - 1):
                assert (await host.try_again()).status is RunStatus.INTERRUPTED
            persona.missing = False
            record = await host.try_again()
            assert record.status is RunStatus.INTERRUPTED
            assert b"build_failures" not in record.progress


async def test_a_worker_without_the_agent_leaves_the_run_alone() -> None:
    host = Host(Agent(name="other", model=ScriptedModel("done")))
    persona = Persona()
    async with App([persona], host.store, worker=IDLE_WORKER, clock=host.clock) as app:
        await app.submit(persona, "go", run_id="r")
        async with host.app:
            for _ in range(MAX_BUILD_FAILURES + 1):
                record = await host.try_again()
        assert (record.status, record.token) == (RunStatus.QUEUED, 0)
