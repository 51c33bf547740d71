"""Durable functions: plain Python that survives its process. Tools are the steps of a workflow."""

from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.workflow.background_tools import background_tools
from holdfast.core.workflow.definition import Workflow, workflow
from holdfast.core.workflow.function.body_check import WorkflowWarning
from holdfast.core.workflow.function.function_thread import block_on
from holdfast.core.workflow.recorded import call, first, map_items, now, random, run_agent, saga, uuid4
from holdfast.core.workflow.restart import Restart
from holdfast.core.workflow.started_run import StartedRun, start
from holdfast.core.workflow.steps.step_errors import AmbiguousStep, StepCancelled, StepDenied, StepFailed, StepTimeout

__all__ = [
    "AmbiguousStep",
    "Restart",
    "StartedRun",
    "StepCancelled",
    "StepDenied",
    "StepFailed",
    "StepTimeout",
    "Workflow",
    "WorkflowWarning",
    "ask_person",
    "background_tools",
    "block_on",
    "call",
    "first",
    "map_items",
    "now",
    "random",
    "run_agent",
    "saga",
    "sleep",
    "start",
    "uuid4",
    "wait_for",
    "workflow",
]
