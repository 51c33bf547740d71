"""The agents of the suite."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.effects import Effect
from holdfast.core.result import Result
from holdfast.runtime.conversations.turns import Turn
from holdfast.testing.adapter_suite.script import AdapterDriver, AgentScript, CallLog, ScriptedCall, ScriptedTool, Step

STEPS: Sequence[Step] = (
    [
        ScriptedCall("c1", "pay", "Lyon"),
        ScriptedCall("c2", "look", "Bonn"),
        ScriptedCall("c3", "reserve", "Faro"),
    ],
    [ScriptedCall("c4", "pay", "Nice")],
    "all is paid",
)


def make_tools(log: CallLog) -> list[ScriptedTool]:
    """Return a tool of each effect."""
    return [
        log.make_tool("pay"),
        log.make_tool("look", Effect.PURE),
        log.make_tool("reserve", Effect.IDEMPOTENT),
    ]


def make_script(log: CallLog, **changes: Any) -> AgentScript:
    """Return the script of the suite, with a log."""
    return replace(AgentScript(steps=STEPS, tools=make_tools(log), on_request=log.on_request), **changes)


def import_driver(path: str) -> AdapterDriver:
    """Return the driver at `module:attribute`."""
    module, _, attribute = path.partition(":")
    driver: AdapterDriver = getattr(importlib.import_module(module), attribute)
    return driver


def get_answer(driver: str, result: Result | Turn) -> str:
    """Return the text of the answer of a run, or of a turn of a conversation."""
    return import_driver(driver).get_answer(result.output)
