"""An agent whose tool never returns from its thread, in an App that does not wait long for it."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, tool
from holdfast.core.execution import stop

stop.BLOCKED_TOOL_TIMEOUT = timedelta(milliseconds=100)


@tool
def hang() -> None:
    Path("effects").write_text("hang c1\n")
    threading.Event().wait()


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    return Reply(tool_calls=[ToolCall(id="c1", name="hang", arguments={})])


app = App([Agent(name="stuck", model=model, tools=[hang])], worker=WorkerSettings(shutdown_timeout=timedelta(0)))
