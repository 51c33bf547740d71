"""A watcher gets the same durable events whatever happens to the run, and whenever it leaves and returns."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.ports import Checkpointer, Leave
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolCall, ToolResult, User
from holdfast.core.run.run_events import (
    Event,
    HistoryRewritten,
    MessageAdded,
    PhaseFinished,
    ReplyAdded,
    RetryScheduled,
    StatusChanged,
    StepFinished,
    ToolCalled,
    ToolReturned,
)
from holdfast.core.run.state import RunState
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.streams.hub import EventHub
from holdfast.stores.memory import MemoryStore

ACTIONS = st.lists(
    st.sampled_from(["message", "reply", "result", "step", "note", "rewrite", "phase", "resume", "stay", "leave"])
    | st.integers(0, 3),
    max_size=25,
)


class Run:
    """A run that is written by hand, and the events that a watcher has to get."""

    def __init__(self, checkpoints: StoreCheckpoints) -> None:
        self._checkpoints = checkpoints
        self.state = RunState()
        self._checkpointer: Checkpointer | None = None
        self._number = 0
        #: What a watcher with a cursor has not got yet, and what one without a cursor gets.
        self.due: list[str] = []
        self.whole: list[str] = []

    async def start(self) -> None:
        self._checkpointer = await self._checkpoints.begin(RunInfo(run_id="r", agent_name="a"))
        await self.act("message")

    async def act(self, action: str) -> None:
        """Change the run and save it. An action that does not fit the state is left out."""
        self._number += 1
        text, state = f"{action} {self._number}", self.state
        events: list[str] = []
        open_calls = [call for call in self._get_calls() if call not in state.results]
        match action:
            case "message" if not self._get_calls():
                state.history.append(User(text))
                events = [f"message {text}"]
            case "reply" if not self._get_calls():
                calls = [ToolCall(id=f"{self._number}-{n}", name="t") for n in range(self._number % 3)]
                state.history.append(Reply(text=text, tool_calls=calls))
                events = [f"reply {text}", *(f"call {call.id}" for call in calls)]
            case "result" if open_calls:
                state.results[open_calls[0]] = ToolResult(call_id=open_calls[0], tool="t")
                events = [f"result {open_calls[0]}"]
            case "step" if isinstance(state.history[-1], Reply):
                new = {call: ToolResult(call_id=call, tool="t") for call in open_calls}
                state.history.extend([{**state.results, **new}[call] for call in self._get_calls()])
                state.finish_step()
                events = [*(f"result {call}" for call in new), f"step {state.steps}"]
            case "note":
                note = RetryScheduled(run_id="r", error=text)
                state.recorded_events.append((len(state.history), msgspec.json.encode(note)))
                events = [f"retry {text}"]
            case "rewrite" if not self._get_calls():
                state.history.rewrite([User(text)])
                await self._save()
                self.due = [f"rewritten message {text}"]
                self.whole = [*(f"phase {phase.name}" for phase in state.phases), f"message {text}"]
                return
            case "phase" if not self._get_calls():
                state.finish_phase(text, None)
                state.history.append(User(text))
                events = [f"phase {text}", f"message {text}"]
        self.due += events
        self.whole += events
        await self._save()

    def _get_calls(self) -> list[str]:
        last = self.state.history[-1] if self.state.history else None
        return [call.id for call in last.tool_calls] if isinstance(last, Reply) else []

    async def _save(self) -> None:
        assert self._checkpointer is not None
        await self._checkpointer.save(self.state, force=True)

    async def resume(self) -> None:
        """Leave the run, and take it again as another worker would."""
        assert self._checkpointer is not None
        await self._checkpointer.leave(Leave())
        claim = await self._checkpoints.store.claim("r", "another")
        resumption = self._checkpoints.resume(claim, await self._checkpoints.store.load("r"), NATIVE_CODEC)
        self._checkpointer, self.state = resumption.checkpointer, resumption.state

    async def finish(self) -> None:
        assert self._checkpointer is not None
        await self._checkpointer.complete("out", self.state.usage)
        self.due.append("output")
        self.whole.append("output")


def describe(event: Event) -> str:
    match event:
        case MessageAdded():
            return f"message {event.content}"
        case ReplyAdded():
            return f"reply {event.text}"
        case ToolCalled():
            return f"call {event.call_id}"
        case ToolReturned():
            return f"result {event.call_id}"
        case StepFinished():
            return f"step {event.step}"
        case RetryScheduled():
            return f"retry {event.error}"
        case PhaseFinished():
            return f"phase {event.name}"
        case HistoryRewritten():
            return " ".join(["rewritten", *(describe(each) for each in event.events if each.type == "message")])
    return event.type


class Watcher:
    """Follows the run with a cursor, and checks each event against what is due."""

    def __init__(self, run: Run, hub: EventHub) -> None:
        self._run, self._hub = run, hub
        self._cursor: str | None = None
        self._live: AsyncGenerator[Event, None] | None = None

    def _get_due(self) -> list[str]:
        return self._run.whole if self._cursor is None else self._run.due

    def _accept(self, event: Event) -> None:
        if event.cursor is None:
            return
        due = self._get_due()
        assert describe(event) == due[0]
        self._run.due = due[1:]
        self._run.whole = []  # has no meaning once there is a cursor
        self._cursor = event.cursor

    async def take(self, count: int | None) -> None:
        """Connect and take some durable events; without a number, all until the stream shows the present."""
        async with aclosing(self._hub.stream("r", self._cursor)) as events:
            async for event in events:
                if event.cursor is None and isinstance(event, StatusChanged) and event.status != RunStatus.DONE:
                    assert self._get_due() == [], "the present comes after all that was missed"
                    return
                self._accept(event)
                if count is not None and (count := count - (event.cursor is not None)) <= 0:
                    return
        assert self._get_due() == []

    async def stay(self) -> None:
        if self._live is None:
            self._live = self._hub.stream("r", self._cursor)
            await self.catch_up()

    async def catch_up(self) -> None:
        """While connected, take what is due: it comes without another connection."""
        while self._live is not None and self._get_due():
            self._accept(await anext(self._live))

    async def leave(self) -> None:
        if self._live is not None:
            await self._live.aclose()
            self._live = None


async def check(actions: list[str | int]) -> None:
    checkpoints = StoreCheckpoints(MemoryStore())
    await checkpoints.open()
    changes = ChangeSignal(checkpoints.store, SYSTEM_CLOCK)
    hub = EventHub(checkpoints, changes)
    hub.open()
    run = Run(checkpoints)
    await run.start()
    watcher = Watcher(run, hub)
    for action in actions:
        if isinstance(action, int):
            await watcher.leave()
            await watcher.take(action)
        elif action == "stay":
            await watcher.stay()
        elif action == "leave":
            await watcher.leave()
        else:
            await (run.resume() if action == "resume" else run.act(action))
            hub.wake("r")
            await watcher.catch_up()
    await watcher.leave()
    await run.finish()
    await watcher.take(None)
    await hub.close()
    await changes.close()
    await checkpoints.close()


@settings(max_examples=120, deadline=None)
@given(ACTIONS)
def test_any_pattern_of_disconnects_gives_the_same_durable_events(actions: list[str | int]) -> None:
    asyncio.run(check(actions))
