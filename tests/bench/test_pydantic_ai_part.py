"""What is compared saves alike: else the bare loop beside the durable one would be no measure."""

from bench.parts.pydantic_ai import Script, bare_agent, run_with_saves
from tests.probe_store import ProbeStore

from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint import StoreCheckpoints
from holdfast.core import Executor, Ports
from holdfast.stores.memory import MemoryStore


async def test_the_bare_loop_makes_the_saves_of_a_durable_run() -> None:
    agent = bare_agent(Script(3))
    bare, kept = ProbeStore(MemoryStore()), ProbeStore(MemoryStore())
    await run_with_saves(agent, StoreCheckpoints(bare))
    await Executor(Ports(checkpoints=StoreCheckpoints(kept))).run(durable(agent), "go")
    assert bare.write_calls == kept.write_calls
    assert bare.kinds == kept.kinds
