"""Whatever is done to a run, what is loaded is what a full snapshot at the last successful save would have been.

And what is read up to the end of a step is what a snapshot at that end would have been, whenever it was saved.
"""

import asyncio
import copy
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.probe_store import ProbeStore

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.claims import Claims
from holdfast.checkpoint.codec import DecodedRun, Step, decode, decode_run, encode
from holdfast.checkpoint.errors import StoreClosed, StoreFull
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.config import CheckpointSettings
from holdfast.core.errors import PayloadError
from holdfast.core.ports import Checkpointer, Leave
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolCall, ToolResult, Usage, User
from holdfast.core.run.state import RetryState, RunState
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

LONG = os.environ.get("HOLDFAST_LONG_TESTS") == "1"

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.none() | st.booleans() | st.integers() | TEXTS | st.lists(TEXTS, max_size=2)
#: Models use the id of a call again in a later step.
CALLS = st.sampled_from(["c1", "c2", "c3", "c4"])
#: A loop of one's own may give one and the same object for any number of calls: a short string, say.
SHARED = st.sampled_from([ToolResult(call_id="any", tool="t", content=content) for content in ("ok", None)])


def snapshot(state: RunState) -> Any:
    """The plain model: everything in a state, as one value."""
    return copy.deepcopy(
        {
            "messages": list(state.history),
            "results": dict(state.results),
            "phases": list(state.phases),
            "phase": state.phase,
            "steps": state.steps,
            "own_usage": state.own_usage,
            "child_usage": state.child_usage,
            "elapsed": state.elapsed,
            "port_data": dict(state.port_data),
            "loop_data": state.loop_data,
            "retry": state.retry,
        }
    )


def at_step_end(state: RunState) -> Any:
    """What a step leaves behind, but for the time and for the phase that is begun after it."""
    return {**snapshot(state), "elapsed": None, "phase": None}


class Journal(RuleBasedStateMachine):
    """A run that is changed, saved, interrupted and resumed in any order, on a store that fails now and then."""

    @initialize(save_interval=st.sampled_from([0, 10]))
    def begin(self, save_interval: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.inner = MemoryStore(clock=self.clock)
        self.settings = CheckpointSettings(save_interval=timedelta(seconds=save_interval), store_timeout=timedelta(0))
        self.do(self.inner.open())
        self.lives = 0
        self.register()
        self.state = RunState()
        #: The ends of steps, by step count; several where the conversation was put in other words after it.
        self.ends: dict[int, list[Any]] = {}
        info = RunInfo(run_id="r", agent_name="a", prompt="go")
        self.handle: Checkpointer = StoreCheckpointer(Claims(self.store, self.settings, self.clock), info)
        #: What the store must have: `None` before the run is in it.
        self.expected: Any = None

    def register(self) -> None:
        """A new process with its own side of the store."""
        self.lives += 1
        self.store = ProbeStore(self.inner)
        self.do(self.inner.register_worker(WorkerIdentity(worker_id=f"w{self.lives}", process=this_process())))

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # -- what a loop does -------------------------------------------------------------------------------------------

    @rule(text=TEXTS)
    def somebody_says(self, text: str) -> None:
        self.state.history.append(User(text))

    @rule(text=TEXTS, tokens=st.integers(0, 5))
    def the_model_replies(self, text: str, tokens: int) -> None:
        self.state.history.append(Reply(text=text, tool_calls=[ToolCall(id="c1", name="t", arguments={"text": text})]))
        self.state.own_usage = self.state.own_usage + Usage(input_tokens=tokens, requests=1)

    @rule(call=CALLS, content=VALUES, tokens=st.integers(0, 5))
    def a_tool_result_is_recorded(self, call: str, content: Any, tokens: int) -> None:
        if call in self.state.results:
            return  # a call has one result
        self.state.results[call] = ToolResult(call_id=call, tool="t", content=content)
        self.state.child_usage = self.state.child_usage + Usage(input_tokens=tokens)

    @rule(call=CALLS, result=SHARED)
    def a_tool_gives_the_very_same_as_others(self, call: str, result: ToolResult) -> None:
        self.state.results.setdefault(call, result)

    @rule(message=SHARED)
    def somebody_says_the_very_same_as_a_tool(self, message: ToolResult) -> None:
        self.state.history.append(message)

    @precondition(lambda self: self.state.results)
    @rule(data=st.data(), stay=st.booleans())
    def some_results_enter_the_conversation(self, data: st.DataObject, stay: bool) -> None:
        calls = data.draw(st.lists(st.sampled_from(sorted(self.state.results)), unique=True, min_size=1))
        self.state.history.extend(self.state.results[call] for call in calls)
        for call in calls if not stay else ():  # else they stay recorded until the step ends
            del self.state.results[call]

    @rule()
    def the_step_ends(self) -> None:
        """What is left of its results entered the conversation in some other form, or nowhere."""
        self.state.finish_step()
        self.ends[self.state.steps] = [at_step_end(self.state)]

    @rule(keep=st.integers(0, 3), text=TEXTS)
    def the_history_is_compacted(self, keep: int, text: str) -> None:
        kept = list(self.state.history)[-keep:] if keep else []
        self.rewrite([User(text), *kept])

    def rewrite(self, messages: list[Any]) -> None:
        self.state.history.rewrite(messages)
        self.end_in_other_words()

    def end_in_other_words(self) -> None:
        """The last step may be saved only now, and what was said in it is not there any more."""
        if ends := self.ends.get(self.state.steps):
            now = at_step_end(self.state)
            ends.append({**ends[0], "messages": now["messages"], "phases": now["phases"]})

    @precondition(lambda self: not self.state.history)
    @rule(name=TEXTS, text=TEXTS)
    def a_phase_is_begun(self, name: str, text: str) -> None:
        self.state.phase = name
        self.state.history.append(User(text))

    @rule(name=TEXTS, output=VALUES)
    def the_phase_is_finished(self, name: str, output: Any) -> None:
        self.state.finish_phase(name, output)
        self.end_in_other_words()

    @rule(name=TEXTS, value=VALUES)
    def a_port_keeps_data(self, name: str, value: Any) -> None:
        self.state.set_port_data(name, value)

    @rule(value=VALUES)
    def the_loop_keeps_data(self, value: Any) -> None:
        self.state.loop_data = value

    @rule(count=st.integers(0, 9), error=TEXTS)
    def a_call_is_retried(self, count: int, error: str) -> None:
        self.state.retry = RetryState(count=count, error=error)

    @rule(seconds=st.integers(0, 20))
    def time_passes(self, seconds: int) -> None:
        self.state.elapsed += timedelta(seconds=seconds)
        written = len(self.store.writes)
        self.do(self.clock.advance(timedelta(seconds=seconds)))
        if len(self.store.writes) > written:  # a window closed
            self.expected = snapshot(self.state)

    # -- saving and loading -----------------------------------------------------------------------------------------

    @rule(urgent=st.booleans())
    def it_is_saved(self, urgent: bool) -> None:
        written = len(self.store.writes)
        self.do(self.handle.save(self.state, force=urgent))
        if len(self.store.writes) > written:
            self.expected = snapshot(self.state)
        elif urgent:
            # Nothing was new, so nothing was written: but for the time, which is no reason to write.
            assert self.expected is not None
            assert {**self.expected, "elapsed": None, "own_usage": None, "child_usage": None} == {
                **snapshot(self.state), "elapsed": None, "own_usage": None, "child_usage": None
            }  # fmt: skip

    @rule(urgent=st.booleans())
    def the_store_refuses_a_save(self, urgent: bool) -> None:
        written = len(self.store.writes)
        self.store.fail("create" if self.expected is None else "append", StoreFull("full"))
        with suppress(StoreFull):  # it is not asked when nothing is new, or when the save interval defers it
            self.do(self.handle.save(self.state, force=urgent))
        self.store.before = None
        assert len(self.store.writes) == written

    @rule()
    def a_message_cannot_be_encoded(self) -> None:
        if self.expected is None:
            return
        self.state.history.append(User("\ud800"))
        with pytest.raises(PayloadError):
            self.do(self.handle.save(self.state, force=True))
        self.rewrite(list(self.state.history)[:-1])

    @precondition(lambda self: self.expected is not None)
    @rule(clean=st.booleans())
    def the_run_is_resumed(self, clean: bool) -> None:
        """After a release, which saves what was held back; or after a death, which loses what was not saved."""
        if clean:
            self.do(self.handle.save(self.state, force=True))
            self.do(self.handle.leave(Leave()))
            self.expected = snapshot(self.state)
        self.store.die()
        with suppress(StoreClosed):
            self.do(self.handle.leave(Leave()))
        self.do(self.inner.deregister_worker(f"w{self.lives}"))
        self.register()
        claim = self.do(self.inner.claim("r", f"w{self.lives}"))
        checkpoints = StoreCheckpoints(self.store, settings=self.settings, clock=self.clock)
        resumption = checkpoints.resume(claim, self.do(self.inner.load("r")), NATIVE_CODEC)
        assert snapshot(resumption.state) == self.expected
        self.state, self.handle = resumption.state, resumption.checkpointer

    @invariant()
    def what_is_loaded_is_the_snapshot(self) -> None:
        if not hasattr(self, "loop"):
            return
        if self.expected is None:
            assert self.do(_run_ids(self.inner)) == []
            return
        stored = self.do(self.inner.load("r"))
        checkpoint: DecodedRun = decode_run(stored, NATIVE_CODEC)
        assert snapshot(checkpoint.state) == self.expected
        first = stored.entries[0].seq
        assert [entry.seq for entry in stored.entries] == list(range(first, stored.record.next_seq))
        assert stored.record.size == sum(len(entry.body) for entry in stored.entries)

    @invariant()
    def what_is_read_up_to_a_step_is_the_run_as_it_was_then(self) -> None:
        if not hasattr(self, "loop") or self.expected is None:
            return
        stored = self.do(self.inner.load("r"))
        steps = [place for place, entry in enumerate(stored.entries) if entry.kind is EntryKind.STEP]
        if steps:
            progress = encode(decode(stored.entries[steps[-1]].body, Step).progress)
            record = msgspec.structs.replace(stored.record, progress=progress)
            state = decode_run(StoredRun(record=record, entries=stored.entries[: steps[-1] + 1]), NATIVE_CODEC).state
            assert at_step_end(state) in self.ends[state.steps]


async def _run_ids(store: MemoryStore) -> list[str]:
    return [record.run_id async for record in iter_runs(store)]


TestJournal = pytest.mark.timeout(900 if LONG else 600)(Journal.TestCase)
TestJournal.settings = settings(
    max_examples=2000 if LONG else 80,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
