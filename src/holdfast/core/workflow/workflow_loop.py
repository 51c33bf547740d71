"""The loop of workflows: calls the function, which calls its steps; and what is stored of them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.agents.tool_context import _CURRENT_CALL, CURRENT_WORKFLOW
from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.execution.native_calls import list_finished_calls, list_pending_calls
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.info import WORKFLOW_LOOP_NAME
from holdfast.core.run.messages import NATIVE_CODEC, MessageCodec, ToolResult, User
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.workflow.function.workflow_function import WorkflowFunction
from holdfast.core.workflow.restart import Life, Restart
from holdfast.core.workflow.suspension import Unwind
from holdfast.core.workflow.undo import WorkflowScope
from holdfast.core.workflow.workflow_run import WorkflowRun


class WorkflowLoop:
    """Executes the runs of one workflow. Its calls and results are native messages; each call is a step."""

    name = WORKFLOW_LOOP_NAME

    def __init__(self, function: WorkflowFunction) -> None:
        self.function = function

    @property
    def codec(self) -> MessageCodec:
        return NATIVE_CODEC

    def check_input(self, prompt: Any, inputs: Mapping[str, Any]) -> None:
        """Refuse an input that does not fit the function, before anything is stored."""
        self.function.bind(prompt, inputs)

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        return list_pending_calls(history)

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        return list_finished_calls(history, results)

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return ToolResult(
            call_id=call.call_id, tool=call.tool, content=to_json_value(content, "the answer"), error=error
        )

    def make_message(self, content: str | list[Any]) -> Any:
        raise DefinitionError(
            "a workflow reads no messages: fork it with edited results of a step, or at step 1 with another prompt"
        )

    def dump_output(self, output: Any) -> Any:
        return to_json_value(output, "the result of the workflow")

    def load_output(self, stored: Any) -> Any:
        try:
            return msgspec.convert(stored, self.function.returns)
        except (msgspec.ValidationError, TypeError) as exc:
            raise PayloadError(f"the result of the workflow does not fit its annotation: {exc}") from exc

    async def run(self, context: StepContext) -> Any:
        """Call the function, and return its result as a store returns it.

        Raises:
            RunWaiting: all its steps wait for time or mail.
        """
        info = context.attempt.info
        if info.conversation:
            raise DefinitionError(f"workflow {info.agent_name}: a workflow holds no conversations")
        if context.begins:
            text = summarize_prompt(context.prompt) or msgspec.json.encode(info.inputs).decode()
            # Equal calls of two phases differ by their step, and so by their idempotency keys.
            life = Life(first_step=context.state.steps)
            await context.start([User(text, [msgspec.to_builtins(life)] if life.first_step else [])])
        for call_id, result in list(context.state.results.items()):  # a person has resolved them
            context.state.finish_call(call_id, result)
        while True:
            life = Life.from_state(context.state)
            try:
                output = await self._live(context, life)
            finally:
                await context.close()
            if not isinstance(output, _NextLife):
                return self.load_output(self.dump_output(output))
            context = await self._restart(context, life, output)

    async def _live(self, context: StepContext, life: Life) -> Any:
        """Call the function with the arguments of this life."""
        info = context.attempt.info
        # A later attempt gets them from the store: steps are found by arguments that depend on them.
        redact, state = context.attempt.services.redact_value, context.state
        if life.arguments is not None:
            arguments = self.function.bind("", redact(dict(life.arguments)))
        elif state.phase or state.phases:
            known = {**info.inputs, **{phase.name: phase.output for phase in state.phases}}
            needs_prompt = context.prompt != info.prompt
            arguments = self.function.bind_phase(redact(context.prompt), redact(known), needs_prompt=needs_prompt)
        else:
            arguments = self.function.bind(redact(context.prompt), redact(dict(info.inputs)))
        life.enter(context.state)
        run = self.make_run(context, life)
        output = await self._call_function(run, arguments)
        run.consume_messages()
        run.record_abandoned()
        return output

    def make_run(self, context: StepContext, life: Life) -> WorkflowRun:
        """Return what makes the steps of one attempt."""
        return WorkflowRun(context, life)

    async def _restart(self, context: StepContext, life: Life, following: "_NextLife") -> StepContext:
        """Begin the next life in one write: a crash before it repeats the end of this life, one after it does not."""
        attempt = context.attempt
        await attempt.saver.save(must_succeed=True)  # what was deferred belongs to this life
        life.restart(context.state, following.arguments)
        await attempt.saver.save(must_succeed=True)
        attempt.stop_state.raise_if_stopped()
        await asyncio.sleep(0)  # without a store nothing else lets other runs continue
        return StepContext(attempt, context.profile, context.prompt)

    async def _call_function(self, run: WorkflowRun, arguments: dict[str, Any]) -> Any:
        suspension, task = run.suspension, asyncio.current_task()
        CURRENT_WORKFLOW.set(run)
        _CURRENT_CALL.set(None)  # a child run has inherited the call that started it
        try:
            async with WorkflowScope(run):
                output = await self.function.call(run, arguments)
                if isinstance(output, Restart):
                    redact = run.attempt.services.redact_value
                    output = _NextLife(redact(self.function.bind_restart(output)))
        except BaseException as exc:
            if suspension.error is not None:
                if isinstance(exc, asyncio.CancelledError) and task is not None:
                    task.uncancel()
                raise suspension.error from None
            if isinstance(exc, Unwind) or _is_unwound(exc):
                raise asyncio.CancelledError from None  # the run was stopped
            raise
        finally:
            CURRENT_WORKFLOW.set(None)
            await suspension.close()
        if suspension.error is not None:  # the function has swallowed it
            raise suspension.error
        return output


class _NextLife:
    """The function has returned `Restart`, with arguments that fit it."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


def _is_unwound(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup) and error.subgroup(Unwind) is not None
