"""SIGTERM and SIGINT in a real process."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: A host with one run that is in the middle of a tool. It prints the outcome as its last lines.
PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from datetime import timedelta
    from tests.simulated_host import SimulatedHost
    from tests.scripted_model import ScriptedModel, tool_reply, call
    from holdfast.core.agents.agent import Agent
    from holdfast.core.errors import Shutdown
    from holdfast.core.agents.tool import tool

    async def main(grace, finishes):
        host = SimulatedHost()

        @tool(effect="pure")
        async def work():
            print("working", flush=True)
            if finishes:
                while not host.executor.draining:
                    await asyncio.sleep(0.01)
            else:
                await asyncio.Event().wait()
            return "worked"

        host.executor.shutdown_on_signals(timedelta(seconds=grace))
        agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "work")), "never"), tools=[work])
        try:
            await host.executor.run(agent, "go", run_id="r")
        except Shutdown as exc:
            print("left:", exc, flush=True)
        await host.executor.shutdown()
        for record in host.store.at_close:
            print(record.run_id, record.status, flush=True)

    asyncio.run(main(float(sys.argv[1]), sys.argv[2] == "finishes"))
    """
)


def start(grace: float, how: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(grace), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "working\n", process.communicate(timeout=60)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_run_reach_its_boundary_and_the_process_end_well(number: signal.Signals) -> None:
    process = start(60, "finishes")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out == "left: run r stopped for a shutdown after step 1\nr interrupted\n"


def test_a_signal_stops_the_run_where_it_is_when_the_grace_is_over() -> None:
    process = start(0.2, "hangs")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out == "left: run r was stopped for a shutdown within step 1\nr interrupted\n"


def test_a_second_signal_ends_the_process_as_it_would_have_without() -> None:
    process = start(3600, "hangs")
    process.send_signal(signal.SIGTERM)
    # The first is in force as soon as the second kills: until then the process stays. Send it until it has done so.
    while True:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == -signal.SIGTERM
