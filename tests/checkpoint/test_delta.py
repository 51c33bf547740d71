"""Only what is new is encoded and written, whatever happened since."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.checkpoint.harness import SECOND, CheckpointerHarness

from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import EntryKind
from holdfast.core.ports import Leave
from holdfast.core.run.mail import Mail
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolResult, User
from holdfast.core.run.run_events import PhaseStarted
from holdfast.core.run.state import RunState

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


async def test_a_save_encodes_each_message_once_and_never_again(harness: CheckpointerHarness) -> None:
    codec = CountingCodec()
    harness.state = RunState(codec=codec)
    handle = harness.make_checkpointer()
    for number in range(50):
        harness.add_message(f"{number} a")
        harness.add_message(f"{number} b")
        await handle.save(harness.state)
        await handle.save(harness.state)
        assert [message.text for message in codec.encoded] == [f"{number} a", f"{number} b"]
        codec.encoded.clear()


async def test_a_step_is_the_same_number_of_bytes_early_and_late(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    sizes: list[int] = []
    harness.state.steps = 10_000
    for number in range(10_000, 11_000):
        harness.add_message(f"{number} " + "x" * 1000)
        harness.state.finish_step()
        await handle.save(harness.state)
        sizes.append(sum(len(entry.body) for entry in harness.store.writes[-1]))
    assert max(sizes[1:]) == min(sizes[1:])


async def test_a_save_of_nothing_new_is_no_write(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("one")
    await handle.save(harness.state)
    harness.state.elapsed += SECOND
    await handle.save(harness.state)
    await handle.save(harness.state, force=True)
    assert len(harness.store.writes) == 1


async def test_data_of_a_port_is_reason_enough_for_a_write(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    harness.state.set_port_data("critic", {"extended": True})
    await handle.save(harness.state)
    assert decode_run(await harness.inner.load("r"), NATIVE_CODEC).state.port_data == {"critic": {"extended": True}}


async def test_a_recorded_result_is_written_once_and_only_named_when_it_enters_the_conversation(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer()
    first, second, third = a_result("c1"), a_result("c2"), a_result("c3")
    await handle.save(harness.state)
    harness.state.results["c2"] = second
    await handle.save(harness.state)
    harness.state.results["c1"] = first
    await handle.save(harness.state)
    harness.state.history.extend([first, second, third])
    harness.state.results.clear()
    await handle.save(harness.state)
    assert harness.store.kinds == [[BEGIN], [RESULT], [RESULT], [ADOPT, MESSAGE]]
    state = decode_run(await harness.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [first, second, third]
    assert state.results == {}


async def test_a_result_that_equals_another_is_not_taken_for_it(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    harness.state.results["c1"] = a_result("c1")
    await handle.save(harness.state)
    harness.state.history.append(a_result("c1"))
    await handle.save(harness.state)
    state = decode_run(await harness.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [a_result("c1")]
    assert state.results == {"c1": a_result("c1")}


async def test_calls_that_give_one_and_the_same_object_are_told_apart_by_their_ids(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer()
    same = a_result("any")
    await handle.save(harness.state)
    for call in ("c1", "c2", "c3"):
        harness.state.results[call] = same
        await handle.save(harness.state)
    assert harness.store.kinds == [[BEGIN], [RESULT], [RESULT], [RESULT]]
    harness.state.history.extend(harness.state.results.pop(call) for call in ("c1", "c3"))
    harness.state.history.append(same)
    await handle.save(harness.state)
    assert harness.store.kinds[-1] == [ADOPT, MESSAGE]
    state = decode_run(await harness.inner.load("r"), NATIVE_CODEC).state
    assert list(state.history) == [same, same, same]
    assert state.results == {"c2": same}


async def test_a_result_is_written_again_when_the_next_step_gives_the_same_object(harness: CheckpointerHarness) -> None:
    """What the store has of an earlier step or phase is not taken for it when the run is loaded."""
    handle = harness.make_checkpointer()
    same = a_result("any")
    harness.state.results["c1"] = same
    await handle.save(harness.state)
    harness.state.finish_step()
    harness.state.results["c1"] = same
    await handle.save(harness.state)
    assert decode_run(await harness.inner.load("r"), NATIVE_CODEC).state.results == {"c1": same}
    harness.state.finish_phase("plan", None)
    harness.add_message("do")
    harness.state.history.append(same)
    harness.state.results["c1"] = same
    await handle.save(harness.state)
    state = decode_run(await harness.inner.load("r"), NATIVE_CODEC).state
    assert (list(state.history), state.results) == ([User("do"), same], {"c1": same})


async def test_a_step_that_is_saved_with_the_beginning_of_the_next_stands_before_that(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("do")
    await handle.save(harness.state)
    harness.state.results["c1"] = a_result("c1")
    await handle.save(harness.state)
    harness.state.history.append(harness.state.results["c1"])
    harness.state.finish_step()
    harness.add_message("go on")
    harness.state.results["c2"] = a_result("c2")
    await handle.save(harness.state)
    assert harness.store.kinds[-1] == [ADOPT, EntryKind.STEP, MESSAGE, RESULT]


async def test_a_rewritten_history_replaces_the_journal_and_loads_as_such(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    for number in range(10):
        harness.add_message(str(number))
        await handle.save(harness.state)
    outstanding = a_result("c1")
    harness.state.results["c1"] = outstanding
    await handle.save(harness.state)
    before = await harness.load_record()
    harness.state.history.rewrite([User("in short")])
    await handle.save(harness.state)
    harness.add_message("and on")
    await handle.save(harness.state)
    stored = await harness.inner.load("r")
    assert [entry.kind for entry in stored.entries] == [BEGIN, MESSAGE, RESULT, MESSAGE]
    assert stored.entries[0].seq == before.next_seq
    assert stored.record.size == sum(len(entry.body) for entry in stored.entries) < before.size
    assert await harness.load_texts() == ["in short", "and on"]
    assert decode_run(stored, NATIVE_CODEC).state.results == {"c1": outstanding}


async def test_a_rewrite_that_could_not_be_written_is_written_by_the_next_save(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("long")
    await handle.save(harness.state)
    harness.state.history.rewrite([User("short")])
    harness.store.fail("append", StoreFull("full"))
    with pytest.raises(StoreFull):
        await handle.save(harness.state)
    assert await harness.load_texts() == ["long"]
    harness.add_message("and on")
    await handle.save(harness.state)
    assert await harness.load_texts() == ["short", "and on"]


async def test_a_phase_that_is_finished_starts_the_conversation_anew(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("plan")
    harness.state.results["c1"] = a_result("c1")
    await handle.save(harness.state)
    harness.state.finish_phase("plan", {"steps": 3})
    await handle.save(harness.state)
    harness.add_message("do")
    await handle.save(harness.state)
    assert harness.store.kinds == [[BEGIN, MESSAGE, RESULT], [EntryKind.PHASE], [MESSAGE]]
    state = decode_run(await harness.inner.load("r"), NATIVE_CODEC).state
    assert [phase.output for phase in state.phases] == [{"steps": 3}]
    assert await harness.load_texts() == ["do"]
    assert state.results == {}


async def test_a_resumed_handle_writes_only_what_its_own_life_added(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    for number in range(5):
        harness.add_message(str(number))
    held = a_result("c1")
    harness.state.results["c1"] = held
    await handle.save(harness.state)
    await handle.leave(Leave())

    claim = await harness.inner.claim("r", "w")
    codec = CountingCodec()
    resumption = StoreCheckpoints(harness.store, clock=harness.clock).resume(
        claim, await harness.inner.load("r"), codec
    )
    state = resumption.state
    state.history.extend([state.results.pop("c1"), Reply(text="new")])
    harness.store.writes.clear()
    await resumption.checkpointer.save(state)
    assert codec.encoded == [Reply(text="new")]
    assert harness.store.kinds == [[ADOPT, MESSAGE]]


async def test_mail_and_notes_that_are_taken_during_a_write_are_in_the_next_one(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer()
    harness.add_message("go")
    await checkpointer.save(harness.state)
    for mail_id in ("before", "during"):
        await harness.inner.post("r", Mail(mail_id=mail_id, topic="message", body=b"{}"))
    reached, proceed = asyncio.Event(), asyncio.Event()

    async def gate(method: str) -> None:
        reached.set()
        await proceed.wait()

    def take(mail_id: str) -> None:
        harness.add_message(mail_id)
        harness.state.consumed.append(mail_id)
        harness.state.recorded_events.append((1, msgspec.json.encode(PhaseStarted(run_id="r", step=0, name=mail_id))))

    harness.store.before = gate
    take("before")
    writing = asyncio.create_task(checkpointer.save(harness.state))
    await reached.wait()
    take("during")
    harness.store.before = None
    proceed.set()
    await writing
    assert [mail.mail_id for mail in (await harness.inner.load("r")).mail] == ["during"]
    assert (harness.state.consumed, len(harness.state.recorded_events)) == (["during"], 1)
    await checkpointer.save(harness.state)
    stored = await harness.inner.load("r")
    assert (stored.mail, harness.state.consumed, harness.state.recorded_events) == ((), [], [])
    assert await harness.load_texts() == ["go", "before", "during"]
    noted = [entry.body for entry in stored.entries if entry.kind is EntryKind.EVENT]
    assert [msgspec.json.decode(body)["name"] for body in noted] == ["before", "during"]
