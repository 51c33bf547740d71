"""The handle that a loop works through: durable steps within bounds, and the messages that the next step takes."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core.agents.agent import Profile
from holdfast.core.errors import MissingDefinition, RunParked, StepsExceeded
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.background import format_notice, list_notices, take_notices
from holdfast.core.execution.calling.tool_calls import ToolCalls
from holdfast.core.execution.calling.waits import Waits
from holdfast.core.execution.model_calls import ModelCalls
from holdfast.core.execution.turn_cycle import begin_turn, raise_if_interrupted
from holdfast.core.observer import DRAFT_ENDED, MODEL_ASKED, ModelAsked, StepEnded
from holdfast.core.run.mail import MESSAGE_TOPIC, Mail, decode_message
from holdfast.core.run.messages import Usage
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.run_events import (
    CustomEvent,
    MessageAdded,
    ReasoningDelta,
    ReplyAdded,
    StepStarted,
    TextDelta,
    TurnStarted,
)
from holdfast.core.run.state import RunState, StepTimer
from holdfast.core.run.turns import TurnMessage


class StepContext:
    """The whole run, one phase of it, or one turn of a conversation."""

    def __init__(
        self, attempt: Attempt, profile: Profile, prompt: str | list[Any], *, turn_mail: Mail | None = None
    ) -> None:
        """Make the context of a new or a resumed phase or turn.

        Args:
            turn_mail: the message that begins a turn of a conversation. `None`: the turn has begun.
        """
        #: The prompt: text, or content parts as `PromptEncoder.dump_prompt` made them. Empty for a resumed turn.
        self.prompt = prompt
        self.profile = profile
        self._turn_mail = turn_mail
        self.attempt = attempt
        self.state: RunState = attempt.state
        self.model_calls: ModelCalls = ModelCalls(attempt, profile.retry)
        self.waits: Waits = Waits(attempt)
        self._times = StepTimer(attempt.services.clock)
        #: The tool calls of the current step.
        self.tool_calls: ToolCalls = ToolCalls(attempt, self.waits, self._times)
        #: A part of the reply in progress was shown.
        self._has_draft = False

    @property
    def run_id(self) -> str:
        return self.attempt.info.run_id

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
        return self._turn_mail is not None if self.attempt.info.conversation else not self.state.history

    async def start(self, messages: Iterable[Any]) -> None:
        """Add the prompt to the history. Returns when it is in the store, before the first model call."""
        if self._turn_mail is not None:
            begin_turn(self.attempt, self._turn_mail)
            self._turn_mail = None
        self.state.history.extend(messages)
        await self.attempt.saver.save(force=True)
        if self.state.turn is not None and TurnStarted in self.attempt.observers.wanted:
            turn = self.state.turn
            await self.attempt.observers.publish(
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
        attempt, state = self.attempt, self.state
        if attempt.stop_state.is_stopped or attempt.stop_state.draining:
            attempt.stop_state.raise_if_stopped()
        if attempt.info.conversation:
            raise_if_interrupted(attempt)
        self._times.begin()
        observers = attempt.observers
        if ModelAsked in observers.wanted:
            observers.emit(MODEL_ASKED)
        bounds, phase_bounds = self.profile.bounds, self.profile.phase_bounds
        if state.turn_steps >= bounds.max_steps:
            raise StepsExceeded(self.run_id, bounds.max_steps)
        if phase_bounds is not None and state.phase_steps >= phase_bounds.max_steps:
            raise StepsExceeded(self.run_id, phase_bounds.max_steps)
        if attempt.services.ports.budget is not None:
            await attempt.services.ports.budget.check(attempt.info, state)
        if StepStarted in observers.wanted:
            await observers.publish(StepStarted(run_id=self.run_id, step=state.steps + 1))
        if prepare is not None:
            await prepare()
        # Taken last: an error before this point must not lose the messages.
        if not state.nudges and not attempt.mailbox.unread:
            return []
        messages = attempt.mailbox.find(MESSAGE_TOPIC)
        for content in (*map(format_notice, list_notices(attempt)), *state.nudges, *map(decode_message, messages)):
            text = summarize_prompt(content)
            await observers.publish(MessageAdded(run_id=self.run_id, step=state.steps + 1, role="user", content=text))
        return [*map(format_notice, take_notices(attempt)), *take_messages(attempt)]

    def add_usage(self, usage: Usage) -> None:
        """Count the usage of a model call or a tool of this run."""
        self.state.own_usage = self.state.own_usage + usage
        if self.model_calls.has_limits:
            self.model_calls.on_usage(usage)

    async def emit_text(self, text: str) -> None:
        """Show further text of the reply in progress to watchers and listeners. It is not recorded."""
        observers = self.attempt.observers
        if text and TextDelta in observers.wanted:
            self._has_draft = True
            await observers.publish(TextDelta(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def emit_reasoning(self, text: str) -> None:
        """Show further reasoning that precedes the reply, as `emit_text` does."""
        observers = self.attempt.observers
        if text and ReasoningDelta in observers.wanted:
            self._has_draft = True
            await observers.publish(ReasoningDelta(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def emit_custom(self, name: str, value: Any, *, path: tuple[str, ...] = ()) -> None:
        """Show data of the run's own code to watchers and listeners, and record it."""
        attempt = self.attempt
        event = CustomEvent(run_id=self.run_id, step=self.state.steps + 1, name=name, value=value, path=path)
        attempt.record_event(event)
        await attempt.saver.save()
        if CustomEvent in attempt.observers.wanted:
            await attempt.observers.publish(event)

    def restart_draft(self) -> None:
        """Withdraw the text that was emitted: the model call is repeated."""
        self.model_calls.retract_draft()

    def end_draft(self) -> None:
        """End the draft of a reply that is in the history."""
        self._has_draft = False
        self.attempt.observers.emit(DRAFT_ENDED)

    async def emit_reply(self, text: str) -> None:
        """Show the complete reply, which is in the history: its draft ends."""
        observers = self.attempt.observers
        if self._has_draft:
            self.end_draft()
        if ReplyAdded in observers.wanted:
            await observers.publish(ReplyAdded(run_id=self.run_id, step=self.state.steps + 1, text=text))

    async def end_step(self) -> None:
        """Finish and save the step: the reply and all its tool results are in the history."""
        attempt, state = self.attempt, self.state
        force = self.tool_calls.end_step()
        times = self._times.end()
        state.finish_step(times)
        await attempt.saver.save(force=force)
        if attempt.services.ports.budget is not None:
            attempt.saver.update_elapsed()
            await attempt.services.ports.budget.commit(attempt.info, state)
        attempt.observers.emit(StepEnded(None if times is None else times.took / 1000))

    @property
    def has_messages(self) -> bool:
        """Whether a message waits: the run takes another step even if the reply is an answer."""
        return bool(self.state.nudges) or self.attempt.mailbox.has(MESSAGE_TOPIC)

    async def close(self) -> None:
        """End the phase or turn: no timer and no save of it stays behind."""
        await self.tool_calls.close()


def take_messages(attempt: Attempt) -> list[str | list[Any]]:
    """Return and remove the messages for the next step: nudges of critics first, then those that were sent to the run.

    They are text, or content parts as plain data. The caller puts them into the history before it awaits anything.
    """
    state = attempt.state
    nudges, state.nudges = state.nudges, ()
    messages = attempt.mailbox.take_all(MESSAGE_TOPIC)
    if messages and (turn := state.turn) is not None:
        joined = {mail.mail_id: TurnMessage.from_mail(mail).digest for mail in messages}
        state.turn = msgspec.structs.replace(turn, joined={**turn.joined, **joined})
    return [*nudges, *map(decode_message, messages)]
