"""The handle that a loop works through: durable steps within bounds."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.agents.agent import Profile
from holdfast.core.errors import MissingDefinition, RunParked, StepsExceeded
from holdfast.core.execution.attempt import RunExecution
from holdfast.core.execution.call_retries import ModelRetries
from holdfast.core.execution.model_gate import ModelGate
from holdfast.core.execution.tool_calls import ToolCalls
from holdfast.core.execution.turn_cycle import begin_turn, raise_if_interrupted
from holdfast.core.execution.waits import Waits
from holdfast.core.observer import MODEL_ASKED, ModelAsked, StepEnded
from holdfast.core.run.mail import Mail
from holdfast.core.run.messages import Usage
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.run_events import (
    CustomEvent,
    DraftRetracted,
    MessageAdded,
    ReasoningDelta,
    ReplyAdded,
    StepStarted,
    TextDelta,
    TurnStarted,
)
from holdfast.core.run.state import RunState, StepTimer


class StepContext:
    """The whole run, one phase of it, or one turn of a conversation."""

    def __init__(
        self, run: RunExecution, profile: Profile, prompt: str | list[Any], *, turn_mail: Mail | None = None
    ) -> None:
        """Make the context of a new or a resumed phase or turn.

        Args:
            turn_mail: the message that begins a turn of a conversation. `None`: the turn has begun.
        """
        #: The prompt: text, or content parts as `PromptEncoder.dump_prompt` made them. Empty for a resumed turn.
        self.prompt = prompt
        self.profile = profile
        self._turn_mail = turn_mail
        self.run = run
        self.state: RunState = run.state
        self.model_gate: ModelGate = ModelGate(run)
        self.model_retries: ModelRetries = ModelRetries(run, profile.retry, self.model_gate)
        self.waits: Waits = Waits(run)
        self._times = StepTimer(run.clock)
        #: The tool calls of the current step.
        self.calls: ToolCalls = ToolCalls(run, self.waits, self._times)

    @property
    def run_id(self) -> str:
        return self.run.info.run_id

    def refuse_removed_tools(self, names: Sequence[str]) -> None:
        """Apply the agent's policy to a resumed run that is about to call tools which a deploy has removed."""
        if names and self.profile.missing_tools != "report":
            self.refuse_removed("tool", names)

    def refuse_removed(self, kind: str, names: Sequence[str]) -> None:
        """Leave the run to a process that has these tools or nodes, or park it.

        Raises:
            MissingDefinition: the run stays interrupted.
            RunParked: it needs a person.
        """
        if self.profile.missing_tools == "defer":
            raise MissingDefinition(
                f"run {self.run_id} was about to use the {kind} {[*names]}, which this process lacks"
            )
        raise RunParked(f"removed {kind}", f"the run was about to use {[*names]}, which its agent no longer has")

    # -- steps --------------------------------------------------------------------------------------------------

    @property
    def begins(self) -> bool:
        """Whether the prompt is new: the loop adds it to the history with `start`."""
        return self._turn_mail is not None if self.run.info.conversation else not self.state.history

    async def start(self, messages: Iterable[Any]) -> None:
        """Add the prompt to the history. Returns when it is in the store, before the first model call."""
        if self._turn_mail is not None:
            begin_turn(self.run, self._turn_mail)
            self._turn_mail = None
        self.state.history.extend(messages)
        await self.run.saver.save(force=True)
        if self.state.turn is not None and TurnStarted in self.run.observers.wanted:
            turn = self.state.turn
            await self.run.observers.publish(
                TurnStarted(
                    run_id=self.run_id,
                    step=self.state.steps + 1,
                    turn_id=turn.turn_id,
                    number=turn.number,
                    prompt=turn.prompt,
                )
            )

    async def begin_step(self, prepare: Callable[[], Awaitable[None]] | None = None) -> list[str | list[Any]]:
        """Check bounds, budget and shutdown before a model call. Return the messages that were sent to the run.

        A message is text; a loop that accepts content parts in a prompt gets them here too, in the same form.
        The loop puts them into the history before it awaits anything: a save in between would lose them.

        Args:
            prepare: awaited before the messages are taken; for compaction.
        """
        run, state = self.run, self.state
        run.raise_if_stopped()
        if run.info.conversation:
            raise_if_interrupted(run)
        self._times.begin()
        observers = run.observers
        if ModelAsked in observers.wanted:
            observers.emit(MODEL_ASKED)
        bounds, phase_bounds = self.profile.bounds, self.profile.phase_bounds
        if state.turn_steps >= bounds.max_steps:
            raise StepsExceeded(self.run_id, bounds.max_steps)
        if phase_bounds is not None and state.phase_steps >= phase_bounds.max_steps:
            raise StepsExceeded(self.run_id, phase_bounds.max_steps)
        if run.ports.budget is not None:
            await run.ports.budget.check(run.info, state)
        if StepStarted in observers.wanted:
            await observers.publish(StepStarted(run_id=self.run_id, step=state.steps + 1))
        if prepare is not None:
            await prepare()
        # Taken last: an error before this point must not lose the messages.
        if not state.nudges and not run.mailbox.unread:
            return []
        for content in run.messages.peek():
            text = summarize_prompt(content)
            await observers.publish(MessageAdded(run_id=self.run_id, step=state.steps + 1, role="user", content=text))
        return run.messages.take()

    def add_usage(self, usage: Usage) -> None:
        """Count the usage of a model call or a tool of this run."""
        self.state.own_usage = self.state.own_usage + usage
        if self.model_gate.has_limits:
            self.model_gate.on_usage(usage)

    async def emit_text(self, text: str) -> None:
        """Show further text of the reply under way to watchers and listeners. It is not recorded."""
        observers = self.run.observers
        if text and TextDelta in observers.wanted:
            await observers.publish(TextDelta(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def emit_reasoning(self, text: str) -> None:
        """Show further reasoning that precedes the reply, as `emit_text` does."""
        observers = self.run.observers
        if text and ReasoningDelta in observers.wanted:
            await observers.publish(ReasoningDelta(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def emit_custom(self, name: str, value: Any, *, path: tuple[str, ...] = ()) -> None:
        """Show data of the run's own code to watchers and listeners, and record it."""
        run = self.run
        event = CustomEvent(run_id=self.run_id, step=self.state.steps + 1, name=name, value=value, path=path)
        run.record_event(event)
        await run.saver.save()
        if CustomEvent in run.observers.wanted:
            await run.observers.publish(event)

    def restart_draft(self) -> None:
        """Withdraw the text that was emitted: the model is asked again."""
        observers = self.run.observers
        if DraftRetracted in observers.wanted:
            observers.emit(DraftRetracted(run_id=self.run_id, step=self.state.steps + 1))

    def end_draft(self) -> None:
        """End the draft of a reply that listeners do not get, such as one within a subgraph."""
        self.run.observers.emit(ReplyAdded(run_id=self.run_id, step=self.state.steps + 1))

    async def emit_reply(self, text: str) -> None:
        """Show the complete reply, which is in the history: its draft ends."""
        observers = self.run.observers
        if ReplyAdded in observers.wanted:
            await observers.publish(ReplyAdded(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def end_step(self) -> None:
        """Finish and save the step: the reply and all its tool results are in the history."""
        run, state = self.run, self.state
        force = self.calls.end_step()
        times = self._times.end()
        state.finish_step(times)
        await run.saver.save(force=force)
        if run.ports.budget is not None:
            run.saver.update_elapsed()
            await run.ports.budget.commit(run.info, state)
        run.observers.emit(StepEnded(took=None if times is None else timedelta(milliseconds=times.took)))

    @property
    def has_messages(self) -> bool:
        """Whether a message waits: the run takes another step even if the reply is an answer."""
        return not self.run.messages.is_empty

    async def close(self) -> None:
        """End the phase or turn: no timer and no save of it stays behind."""
        await self.calls.close()
