"""The seam for other loops: one with messages, results and a codec of its own is driven like the native one."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.core.recording_ports import RecordingPorts
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel
from tests.simulated_host import REMOVE_DONE, SimulatedHost

from holdfast import App, ApprovalRequest, Approve, RunWaiting
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Bounds, Phase
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.errors import PayloadError, Shutdown, StepsExceeded
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.stores.memory import MemoryStore


class LineCodec:
    """Lines of text, as JSON strings."""

    def encode(self, message: Any) -> bytes:
        if not isinstance(message, str):
            raise PayloadError("a message of this loop is a str")
        return json.dumps(message).encode()

    def decode(self, body: bytes) -> Any:
        message = json.loads(body)
        if not isinstance(message, str):
            raise TypeError("no line")
        return message


@dataclass(frozen=True)
class Answer:
    """An output that is not plain data."""

    text: str


class LineCall(CallRequest):
    """A call of a tool that has the name of the call and no arguments."""

    def __init__(self, loop: "LineLoop", name: str, effect: Effect) -> None:
        super().__init__(call_id=name, tool=name, arguments=None, effect=effect)
        self._loop = loop

    async def execute(self) -> str:
        if self.tool == self._loop.stop_in:
            raise Shutdown("now")
        self._loop.called.append(self.tool)
        return f"did {self.tool}"

    def error_result(self, text: str) -> str:
        return f"({text})"

    def reconciled_result(self, value: Any) -> str:
        return f"found {value}"


class LineLoop:
    """Reads a program: each line of the prompt is one step, `call NAME` or `say TEXT`.

    All results of a step enter the conversation as one message, as some libraries have it.
    """

    name = "lines"

    def __init__(self, effect: Effect = Effect.ONCE) -> None:
        self._effect = effect
        self.called: list[str] = []
        self.stop_in = ""

    @property
    def codec(self) -> LineCodec:
        return LineCodec()

    async def run(self, context: StepContext) -> Answer:
        history = context.state.history
        if not history:
            await context.start([f"program {context.prompt}"])
        program = history[0].removeprefix("program ").split("; ")
        resumed = history[-1].startswith("asked ")
        while context.state.phase_steps < len(program):
            line = program[context.state.phase_steps]
            if not resumed:
                for text in await context.begin_step():
                    history.append(f"steered {text}")
                context.add_usage(Usage(requests=1))
                history.append(f"asked {line}")
            if line.startswith("call "):
                requests = [self._request(name) for name in line.removeprefix("call ").split()]
                results = await self._make_calls(context, requests, resumed=resumed)
                history.append("results " + ", ".join(results))
            await context.end_step()
            resumed = False
        return Answer(" | ".join(history))

    async def _make_calls(
        self, context: StepContext, requests: Sequence[CallRequest], *, resumed: bool
    ) -> Sequence[str]:
        await context.tool_calls.announce({each.call_id: each.effect for each in requests}, resumed=resumed)
        return [await context.tool_calls.execute(request) for request in requests]

    def _request(self, name: str) -> CallRequest:
        return LineCall(self, name, self._effect)

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        return ()

    def finished_calls(self, history: Sequence[Any], results: Mapping[str, Any] | None = None) -> Sequence[Any]:
        return ()

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return str(content)

    def make_message(self, content: str | list[Any]) -> Any:
        return f"steered {content}"

    def dump_output(self, output: Any) -> Any:
        return {"text": output.text}

    def load_output(self, stored: Any) -> Any:
        return Answer(stored["text"])


async def test_another_loop_is_driven_saved_and_completed_like_the_native_one() -> None:
    everything = RecordingPorts()
    host = SimulatedHost(ports=everything.ports)
    loop = LineLoop()
    result = await host.executor.run(Agent(name="a", loop=loop), "say hi; call x y; say bye")
    assert result.output == Answer(
        "program say hi; call x y; say bye | asked say hi | asked call x y | results did x, did y | asked say bye"
    )
    assert (result.steps, result.usage) == (3, Usage(requests=3, tool_calls=2))
    assert everything.get_calls("audit.step") == ["audit.step 1 1", "audit.step 2 2", "audit.step 3 3"]
    assert everything.get_calls("listener.output") == [f"listener.output {result.output}"]
    assert await host.list_records() == []


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.ONCE])
async def test_another_loop_continues_mid_batch_after_an_interruption(effect: Effect) -> None:
    host = SimulatedHost()
    loop = LineLoop(effect)
    loop.stop_in = "y"
    program = "call w; call x y z; call x"
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", loop=loop), program, run_id="r")
    assert loop.called == ["w", "x"]
    after = LineLoop(effect)
    result = await SimulatedHost(host.inner).resume(Agent(name="a", loop=after), "r")
    unknown = f"({UNKNOWN_OUTCOME})"
    # `z` was announced and never started, so it is made.
    y, z = ("did y" if effect is Effect.PURE else unknown), "did z"
    assert result.output.text.endswith(f"results did x, {y}, {z} | asked call x | results did x")
    assert after.called == (["y", "z", "x"] if effect is Effect.PURE else ["z", "x"])
    assert result.steps == 3


class CurtCall(LineCall):
    async def execute(self) -> str:
        await super().execute()
        return "ok"


class CurtLoop(LineLoop):
    """Every tool gives one and the same object."""

    def _request(self, name: str) -> CallRequest:
        return CurtCall(self, name, self._effect)


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.ONCE])
async def test_the_result_of_each_call_is_recorded_though_all_give_the_same_object(effect: Effect) -> None:
    host = SimulatedHost()
    loop = CurtLoop(effect)
    loop.stop_in = "z"
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", loop=loop), "call w; call w x y z", run_id="r")
    after = CurtLoop(effect)
    result = await SimulatedHost(host.inner).resume(Agent(name="a", loop=after), "r")
    z = "ok" if effect is Effect.PURE else f"({UNKNOWN_OUTCOME})"
    assert result.output.text.endswith(f"results ok, ok, ok, {z}")
    assert after.called == (["z"] if effect is Effect.PURE else [])


async def test_a_result_of_an_earlier_step_is_not_taken_for_a_later_call_with_the_same_id() -> None:
    host = SimulatedHost()
    loop = LineLoop(Effect.PURE)
    loop.stop_in = "stop"
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", loop=loop), "call x y; call x stop", run_id="r")
    assert any(EntryKind.RESULT in kinds for kinds in host.store.kinds)
    resumption = await SimulatedHost(host.inner).claim(Agent(name="a", loop=loop), "r")
    assert set(resumption.state.results) == {"x"}
    assert resumption.state.results["x"] == "did x"


class CautiousLoop(LineLoop):
    """Every call needs an approval, which the loop does not ask for by itself."""

    def _request(self, name: str) -> CallRequest:
        request = super()._request(name)
        request.approval = ApprovalRequest(reason=f"may it {name}?")
        return request


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.ONCE])
async def test_a_call_that_needs_an_approval_waits_for_it_although_the_loop_does_not_ask(effect: Effect) -> None:
    loop = CautiousLoop(effect)
    async with App([Agent(name="a", loop=loop)], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting, match="approval of x"):
            await app.run("a", "call x", run_id="r")
        assert loop.called == []
        await app.answer("r", "x", Approve())
        assert (await app.resume("r")).output == Answer("program call x | asked call x | results did x")
    assert loop.called == ["x"]


async def test_bounds_and_phases_hold_for_another_loop() -> None:
    loop = LineLoop(Effect.PURE)
    agent = Agent(name="a", loop=loop, bounds=Bounds(max_steps=2))
    with fails_with(StepsExceeded):
        await SimulatedHost().executor.run(agent, "say a; say b; say c")
    agent = Agent(name="a", loop=loop, phases=[Phase(name="p"), Phase(name="q", prompt="say $p")])
    result = await SimulatedHost().executor.run(agent, "say a")
    first = '{"text":"program say a | asked say a"}'
    assert result.output == Answer(f"program say {first} | asked say {first}")
    assert result.phases[0].output == json.loads(first)


async def test_a_message_that_another_loops_codec_cannot_store_fails_the_run_and_settles_it() -> None:
    class Odd(LineLoop):
        async def run(self, context: StepContext) -> Answer:
            await context.start(["fine"])
            await context.begin_step()
            context.state.history.append(b"not a line")
            await context.end_step()
            return Answer("never")

    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    with fails_with(PayloadError, match="is a str"):
        await host.executor.run(Agent(name="a", loop=Odd()), "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.FAILED}


async def test_what_another_loops_codec_cannot_read_is_refused_and_left_untouched() -> None:
    host = SimulatedHost()
    loop = LineLoop()
    loop.stop_in = "x"
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", loop=loop), "call x", run_id="r")
    before = await host.inner.load("r")
    with pytest.raises(RecordDecodeError, match="NativeCodec"):
        await SimulatedHost(host.inner).claim(Agent(name="a", model=ScriptedModel("never")), "r")
    assert (await host.inner.load("r")).entries == before.entries


async def test_an_agent_may_be_built_when_its_run_begins() -> None:
    class Source:
        name = "late"

        async def build(self, info: RunInfo) -> Agent:
            assert info.agent_name == "late"
            return Agent(name="late", loop=LineLoop(Effect.PURE))

    result = await SimulatedHost().executor.run(Source(), "say hi")
    assert result.output == Answer("program say hi | asked say hi")


class SeparateLoop(LineLoop):
    """Announces each call by itself, as the branches of a function do."""

    async def _make_calls(
        self, context: StepContext, requests: Sequence[CallRequest], *, resumed: bool
    ) -> Sequence[str]:
        for request in requests:
            await context.tool_calls.announce({request.call_id: request.effect}, resumed=resumed)
        return [await context.tool_calls.execute(request) for request in requests]


async def test_calls_that_are_announced_one_by_one_keep_what_is_known_of_each() -> None:
    host, loop = SimulatedHost(), SeparateLoop(Effect.ONCE)
    loop.stop_in = "y"
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", loop=loop), "call w x y z", run_id="r")
    assert loop.called == ["w", "x"]
    after = SeparateLoop(Effect.ONCE)
    result = await SimulatedHost(host.inner).resume(Agent(name="a", loop=after), "r")
    assert after.called == ["z"], "y was started and is in doubt, z was not"
    assert result.output.text.endswith(f"results did w, did x, ({UNKNOWN_OUTCOME}), did z")


class BranchLoop(LineLoop):
    """Makes each call in a branch of its own. A branch announces its call once the one before has started."""

    async def _make_calls(
        self, context: StepContext, requests: Sequence[CallRequest], *, resumed: bool
    ) -> Sequence[str]:
        async def follow(number: int, request: CallRequest) -> str:
            while len(self.called) < number:  # noqa: ASYNC110 - no event announces the start of a call
                await asyncio.sleep(0)
            await context.tool_calls.announce({request.call_id: request.effect}, resumed=resumed)
            return str(await context.tool_calls.execute(request))

        return await asyncio.gather(*(follow(number, request) for number, request in enumerate(requests)))

    def _request(self, name: str) -> CallRequest:
        return SlowCall(self, name, self._effect)


class SlowCall(LineCall):
    """Ends when the calls of all branches have started."""

    async def execute(self) -> str:
        result = await super().execute()
        while len(self._loop.called) < 3:  # noqa: ASYNC110 - no event announces the start of a call
            await asyncio.sleep(0)
        return result


@pytest.mark.parametrize("effect", Effect)
async def test_the_calls_of_parallel_branches_overlap(effect: Effect) -> None:
    host, loop = SimulatedHost(), BranchLoop(effect)
    result = await host.executor.run(Agent(name="a", loop=loop), "call x y z", run_id="r")
    assert (loop.called, result.steps) == (["x", "y", "z"], 1)
    assert result.output.text.endswith("results did x, did y, did z")
