"""The context of a tool call, `current_call`, and the text that a native model streams."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import Executor
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import RunError
from holdfast.core.run.info import RunInfo
from holdfast.core.run.waiting import make_secret

if TYPE_CHECKING:
    from holdfast.core.execution.calling.background import StartedRuns
    from holdfast.core.execution.calling.call_tokens import CallTokens
    from holdfast.core.execution.calling.call_transaction import CallTransaction
    from holdfast.core.execution.step import StepContext
    from holdfast.core.workflow.function.function_thread import FunctionThread
    from holdfast.core.workflow.workflow_run import WorkflowRun

#: Set while the native loop calls a model.
CURRENT_REPLY: ContextVar["StepContext | None"] = ContextVar("holdfast_reply", default=None)


async def emit_text(text: str) -> None:
    """Show text of the reply that this model is writing. Does nothing outside a model that a run has called.

    For models of the native loop that stream. The reply that the model returns still has the whole text.
    """
    if (stream := CURRENT_REPLY.get()) is not None:
        await stream.emit_text(text)


async def emit_reasoning(text: str) -> None:
    """Show reasoning that precedes the reply, as `emit_text` shows its text."""
    if (stream := CURRENT_REPLY.get()) is not None:
        await stream.emit_reasoning(text)


class ChildStarter(Protocol):
    """Starts the child runs of one call. `ChildRuns` is one; the crash kit wraps it."""

    async def start(self, agent: Any, prompt: str, key: str | None, inputs: Mapping[str, Any] | None = None) -> Any:
        """Run a child, or attach to the one that has this key, and return its `Result`."""
        ...

    def begin_try(self) -> None:
        """The call is retried: number its children from the first one."""
        ...

    @property
    def background(self) -> "StartedRuns":
        """The runs that this run has started in the background."""
        ...

    async def submit(
        self, agent: Any, prompt: str, key: str | None, inputs: Mapping[str, Any] | None, *, detached: bool
    ) -> RunInfo:
        """Start a run in the background, or find the one that has this key."""
        ...


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of one run."""

    info: RunInfo
    #: Counted from one over the whole run. A model may reuse the id of a call in a later step.
    step: int
    call_id: str
    tool: str
    arguments: Any
    #: Starts the child runs of the call. `None`: it can have none.
    children: ChildStarter | None = None
    #: Runs the function of a sync tool.
    threads: Executor | None = None
    clock: Clock = SYSTEM_CLOCK
    #: For a tool that returns `Deferred`: its holder may complete the call. Unguessable.
    token: str = ""
    #: Calls the function of a `transaction` tool. `None` for the calls of other tools.
    transaction: "CallTransaction | None" = None
    #: Issues the token. `None`: no result can come from outside.
    tokens: "CallTokens | None" = None

    @property
    def completion_token(self) -> str:
        """For a tool that returns `Deferred`: its holder may give the result with `App.complete_call`, also before."""
        if not self.token:  # made at the first use: few calls need one
            token = make_secret("", self.run_id, self.step) if self.tokens is None else self.tokens.issue(self)
            msgspec.structs.force_setattr(self, "token", token)
        return f"{self.info.run_id}~{self.token}"

    def now(self) -> datetime:
        """The time of the run's clock, in UTC."""
        return self.clock.now()

    @property
    def run_id(self) -> str:
        return self.info.run_id

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the run."""
        return self.info.inputs

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt of this call, and different for every other call."""
        digest = hashlib.sha256(f"{self.info.run_id}\n{self.step}\n{self.call_id}".encode()).hexdigest()
        return f"hf-{digest[:32]}"

    async def run(
        self, agent: Any, prompt: str = "", *, key: str | None = None, inputs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run another agent, given as such or by its name, from inside this tool and return its `Result`.

        The child's id is derived from this call. So a call that is repeated after a crash attaches to the same child,
        interrupted or finished, and starts no second one; the tool has to be `idempotent` for that. A child that
        still runs when this call ends is stopped.

        Args:
            key: tells several children of one call apart. Without it they are numbered in the order they are started.
                The same key again returns the same child's result, or raises its error.
            inputs: structured data for the child, as plain JSON data.

        Raises:
            RunError: this call is not executed by an executor.
        """
        if self.children is None:
            raise RunError("this call cannot start child runs: it is not executed by an executor")
        return await self.children.start(agent, prompt, key, inputs)


_CURRENT_CALL: ContextVar[ToolContext | None] = ContextVar("holdfast_call", default=None)


#: Set while the function of a workflow runs.
CURRENT_WORKFLOW: ContextVar["WorkflowRun | FunctionThread | None"] = ContextVar("holdfast_workflow", default=None)


def find_workflow() -> "WorkflowRun | FunctionThread | None":
    """Return the workflow whose function calls this; `None` outside of one, and inside the body of a tool."""
    return CURRENT_WORKFLOW.get() if _CURRENT_CALL.get() is None else None


def current_call() -> ToolContext:
    """Return the call that the running tool is in. Works in the tool's thread and in tasks it starts.

    Raises:
        RunError: no tool of a run is running here.
    """
    context = _CURRENT_CALL.get()
    if context is None:
        raise RunError("current_call() works only inside a tool that a run has called")
    return context
