"""Only what is new is encoded and written, whatever happened since."""

from typing import Any

import pytest
from tests.checkpoint.desk import SECOND, Desk

from holdfast.checkpoint.codec import read_checkpoint
from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.journal import EntryKind
from holdfast.run.message import NATIVE_CODEC, Reply, ToolResult, User
from holdfast.run.state import RunState

MESSAGE, RESULT, ADOPT, BEGIN = EntryKind.MESSAGE, EntryKind.RESULT, EntryKind.ADOPT, EntryKind.BEGIN


class CountingCodec:
    """The native codec, counting."""

    def __init__(self) -> None:
        self.encoded: list[Any] = []

    def encode(self, message: Any) -> bytes:
        self.encoded.append(message)
        return NATIVE_CODEC.encode(message)

    def decode(self, body: bytes) -> Any:
        return NATIVE_CODEC.decode(body)


def a_result(call: str) -> ToolResult:
    return ToolResult(call_id=call, tool="t", content=f"of {call}")


async def test_a_save_encodes_each_message_once_and_never_again(desk: Desk) -> None:
    codec = CountingCodec()
    desk.state = RunState(codec=codec)
    handle = desk.handle()
    for number in range(50):
        desk.say(f"{number} a")
        desk.say(f"{number} b")
        await handle.save(desk.state)
        await handle.save(desk.state)
        assert [message.text for message in codec.encoded] == [f"{number} a", f"{number} b"]
        codec.encoded.clear()


async def test_a_step_is_the_same_number_of_bytes_early_and_late(desk: Desk) -> None:
    handle = desk.handle()
    sizes: list[int] = []
    desk.state.iteration = 10_000
    for number in range(10_000, 11_000):
        desk.say(f"{number} " + "x" * 1000)
        desk.state.finish_step()
        await handle.save(desk.state)
        sizes.append(sum(len(entry.body) for entry in desk.store.writes[-1]))
    assert max(sizes[1:]) == min(sizes[1:])


async def test_a_save_of_nothing_new_is_no_write(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("one")
    await handle.save(desk.state)
    desk.state.elapsed += SECOND
    await handle.save(desk.state)
    await handle.save(desk.state, urgent=True)
    assert len(desk.store.writes) == 1


async def test_a_note_of_a_port_is_reason_enough_for_a_write(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    desk.state.notes["critic"] = {"extended": True}
    await handle.save(desk.state)
    assert read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state.notes == {"critic": {"extended": True}}


async def test_a_recorded_result_is_written_once_and_only_named_when_it_enters_the_conversation(desk: Desk) -> None:
    handle = desk.handle()
    first, second, third = a_result("c1"), a_result("c2"), a_result("c3")
    await handle.save(desk.state)
    desk.state.results["c2"] = second
    await handle.save(desk.state)
    desk.state.results["c1"] = first
    await handle.save(desk.state)
    desk.state.history.extend([first, second, third])
    desk.state.results.clear()
    await handle.save(desk.state)
    assert desk.store.kinds == [[BEGIN], [RESULT], [RESULT], [ADOPT, MESSAGE]]
    state = read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [first, second, third]
    assert state.results == {}


async def test_a_result_that_equals_another_is_not_taken_for_it(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    desk.state.results["c1"] = a_result("c1")
    await handle.save(desk.state)
    desk.state.history.append(a_result("c1"))
    await handle.save(desk.state)
    state = read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [a_result("c1")]
    assert state.results == {"c1": a_result("c1")}


async def test_calls_that_give_one_and_the_same_object_are_told_apart_by_their_ids(desk: Desk) -> None:
    handle = desk.handle()
    same = a_result("any")
    await handle.save(desk.state)
    for call in ("c1", "c2", "c3"):
        desk.state.results[call] = same
        await handle.save(desk.state)
    assert desk.store.kinds == [[BEGIN], [RESULT], [RESULT], [RESULT]]
    desk.state.history.extend(desk.state.results.pop(call) for call in ("c1", "c3"))
    desk.state.history.append(same)
    await handle.save(desk.state)
    assert desk.store.kinds[-1] == [ADOPT, MESSAGE]
    state = read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [same, same, same]
    assert state.results == {"c2": same}


async def test_a_result_is_written_again_when_the_next_step_gives_the_same_object(desk: Desk) -> None:
    """What the store has of an earlier step or phase is not taken for it when the run is loaded."""
    handle = desk.handle()
    same = a_result("any")
    desk.state.results["c1"] = same
    await handle.save(desk.state)
    desk.state.finish_step()
    desk.state.results["c1"] = same
    await handle.save(desk.state)
    assert read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state.results == {"c1": same}
    desk.state.finish_phase("plan", None)
    desk.say("do")
    desk.state.history.append(same)
    desk.state.results["c1"] = same
    await handle.save(desk.state)
    state = read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state
    assert (list(state.history), state.results) == ([User("do"), same], {"c1": same})


async def test_a_step_that_is_saved_with_the_beginning_of_the_next_stands_before_that(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("do")
    await handle.save(desk.state)
    desk.state.results["c1"] = a_result("c1")
    await handle.save(desk.state)
    desk.state.history.append(desk.state.results["c1"])
    desk.state.finish_step()
    desk.say("go on")
    desk.state.results["c2"] = a_result("c2")
    await handle.save(desk.state)
    assert desk.store.kinds[-1] == [ADOPT, EntryKind.STEP, MESSAGE, RESULT]


async def test_a_rewritten_history_replaces_the_journal_and_loads_as_such(desk: Desk) -> None:
    handle = desk.handle()
    for number in range(10):
        desk.say(str(number))
        await handle.save(desk.state)
    outstanding = a_result("c1")
    desk.state.results["c1"] = outstanding
    await handle.save(desk.state)
    before = await desk.record()
    desk.state.history.rewrite([User("in short")])
    await handle.save(desk.state)
    desk.say("and on")
    await handle.save(desk.state)
    stored = await desk.inner.load("r")
    assert [entry.kind for entry in stored.entries] == [BEGIN, MESSAGE, RESULT, MESSAGE]
    assert stored.entries[0].seq == before.next_seq
    assert stored.record.size == sum(len(entry.body) for entry in stored.entries) < before.size
    assert await desk.saved() == ["in short", "and on"]
    assert read_checkpoint(stored, NATIVE_CODEC).state.results == {"c1": outstanding}


async def test_a_rewrite_that_could_not_be_written_is_written_by_the_next_save(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("long")
    await handle.save(desk.state)
    desk.state.history.rewrite([User("short")])
    desk.store.fail("append", StoreFull("full"))
    with pytest.raises(StoreFull):
        await handle.save(desk.state)
    assert await desk.saved() == ["long"]
    desk.say("and on")
    await handle.save(desk.state)
    assert await desk.saved() == ["short", "and on"]


async def test_a_phase_that_is_finished_starts_the_conversation_anew(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("plan")
    desk.state.results["c1"] = a_result("c1")
    await handle.save(desk.state)
    desk.state.finish_phase("plan", {"steps": 3})
    await handle.save(desk.state)
    desk.say("do")
    await handle.save(desk.state)
    assert desk.store.kinds == [[BEGIN, MESSAGE, RESULT], [EntryKind.PHASE], [MESSAGE]]
    state = read_checkpoint(await desk.inner.load("r"), NATIVE_CODEC).state
    assert [phase.output for phase in state.phases] == [{"steps": 3}]
    assert await desk.saved() == ["do"]
    assert state.results == {}


async def test_a_resumed_handle_writes_only_what_its_own_life_added(desk: Desk) -> None:
    handle = desk.handle()
    for number in range(5):
        desk.say(str(number))
    held = a_result("c1")
    desk.state.results["c1"] = held
    await handle.save(desk.state)
    await handle.release()

    claim = await desk.inner.claim("r", "w")
    codec = CountingCodec()
    resumption = Checkpoints(desk.store, clock=desk.clock).resume(claim, await desk.inner.load("r"), codec)
    state = resumption.state
    state.history.extend([state.results.pop("c1"), Reply(text="new")])
    desk.store.writes.clear()
    await resumption.checkpointer.save(state)
    assert codec.encoded == [Reply(text="new")]
    assert desk.store.kinds == [[ADOPT, MESSAGE]]
