"""Completion tokens of the calls of a step: recorded while the tool runs, so that its result may come at any time."""

import asyncio
from collections.abc import Container

from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.execution.attempt import Attempt
from holdfast.core.run.waiting import CallToken, make_secret


class CallTokens:
    """Issues the tokens of one conversation's calls, and saves a hash of each.

    A result is accepted once the hash of its token is in the store. So it is found by any later attempt, also if the
    process ends before the tool has returned `Deferred`.
    """

    def __init__(self, attempt: Attempt, open_calls: Container[str]) -> None:
        """Make the issuer of one conversation.

        Args:
            open_calls: the ids of the announced calls that have no result.
        """
        self._attempt, self._open_calls = attempt, open_calls
        self._loop = asyncio.get_running_loop()
        self._saves: set[asyncio.Task[bool]] = set()

    def issue(self, context: ToolContext) -> str:
        """Return the secret of a new token for the call. Its hash is saved in the background. From any thread."""
        checkpointer = self._attempt.checkpointer
        secret = make_secret("" if checkpointer is None else checkpointer.owner, context.run_id, context.step)
        token = CallToken.create(context.step, context.call_id, secret)
        if asyncio._get_running_loop() is self._loop:
            self._record(token)
        else:
            self._loop.call_soon_threadsafe(self._record, token)
        return secret

    def _record(self, token: CallToken) -> None:
        state = self._attempt.state
        if token.call_id not in self._open_calls or self._attempt.checkpointer is None:
            return  # the call has ended, or nothing is stored
        state.calls = state.calls.add_token(token)
        self.start_save(force=True)

    def start_save(self, *, force: bool) -> None:
        """Save the run in the background, while its calls are made. If that fails, the run is stopped."""
        task = self._loop.create_task(self._attempt.saver.save(force=force))
        self._saves.add(task)
        task.add_done_callback(self._on_saved)

    def _on_saved(self, task: "asyncio.Task[bool]") -> None:
        self._saves.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._attempt.stop(error)

    async def close(self) -> None:
        """End the conversation: no save of it stays behind."""
        if self._saves:
            await asyncio.gather(*self._saves, return_exceptions=True)
