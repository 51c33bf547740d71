"""A process with a saver is killed: what it acknowledged is there."""

import os
import subprocess
import sys

from langgraph.checkpoint.base import CheckpointTuple
from tests.adapters.langgraph.saver_process import MESSAGES
from tests.adapters.langgraph.support import make_config

from holdfast.adapters.langgraph import HoldfastSaver

#: The lines that the process has printed when it is killed: several commits are behind it.
LINES = 60


async def test_what_put_acknowledged_survives_a_kill(durable_store_url: str) -> None:
    acknowledged = _run_until_killed(durable_store_url)
    assert len(acknowledged) >= LINES
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        for thread_id, checkpoint_id, count in acknowledged:
            found = await saver.aget_tuple(make_config(thread_id, checkpoint_id))
            assert found is not None
            _assert_whole(found, int(count))
        async for found in saver.alist(None):  # also those that were not acknowledged
            assert found.checkpoint["channel_values"]["messages"]


def _assert_whole(found: CheckpointTuple, count: int) -> None:
    assert found.checkpoint["channel_values"]["messages"] == MESSAGES[:count]
    assert found.pending_writes == [(f"task-{count}", "messages", count)]


def _run_until_killed(url: str) -> list[list[str]]:
    """Return the words of the lines that the process printed until SIGKILL."""
    command = [sys.executable, "-m", "tests.adapters.langgraph.saver_process", url]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(LINES)]
        process.kill()
        printed += process.stdout.readlines()
    return [line.decode().split() for line in printed]
