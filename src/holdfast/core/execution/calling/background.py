"""Runs that a call starts in the background: any worker executes them while the run that started them continues."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from holdfast.concurrency import run_in_background, shielded
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import RunCancelled, RunError, RunFailed, RunLost, SaveFailed
from holdfast.core.execution.attempt import Attempt, log
from holdfast.core.ports import BackgroundRun, BackgroundRuns
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import ENDED_TOPIC, EndNotice, Mail, make_ended_topic
from holdfast.core.run.run_events import ChildFinished
from holdfast.core.run.status import RunStatus
from holdfast.core.run.waiting import Suspend


class StartedRuns:
    """The runs that one attempt has started in the background, or its run in an earlier attempt."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def _stored(self) -> BackgroundRuns:
        port = self._attempt.services.ports.background
        if port is None or self._attempt.checkpointer is None:
            raise RunError("runs in the background need a store: give the App one")
        return port

    def find_agent(self, agent: AgentSource | str) -> AgentSource | str:
        """Return the agent that is meant, which workers find by its name; the name if only other processes know it."""
        name = agent if isinstance(agent, str) else agent.name
        known = self._attempt.services.ports.agents.get(name)
        if known is None:
            log.warning("run %s starts agent %s, which this process lacks", self._attempt.info.run_id, name)
        return name if known is None else known

    def load_output(self, agent: str, stored: Any) -> Any:
        """Return an output from its stored form. That of an agent which is not known here stays plain data."""
        services = self._attempt.services
        source = services.ports.agents.get(agent)
        return stored if source is None else services.get_loop(source).load_output(stored)

    async def submit(self, info: RunInfo) -> bool:
        """Queue a run for any worker, once. Return whether it is new. If the caller is cancelled, it is finished first.

        The call that starts it is saved before. Otherwise the resumed run could start another one.
        """
        submitting = run_in_background(self._submit(info))
        await shielded(asyncio.wait([submitting]))
        return submitting.result()

    async def _submit(self, info: RunInfo) -> bool:
        stored = self._stored
        self._attempt.state.starts_runs = self._attempt.state.starts_runs or info.parent_run_id is not None
        await self._attempt.saver.save(must_succeed=True)
        with _interrupt_on_error(f"run {info.run_id} could not be started"):
            return await stored.submit(info)

    async def read(self, run_id: str) -> BackgroundRun:
        """Return a run that this one, or the run that it is a fork of, has started.

        Raises:
            RunError: there is none.
        """
        with _interrupt_on_error(f"run {run_id} could not be read"):
            found = await self._stored.read(run_id)
        info = self._attempt.info
        if found is None or found.started_by is None or found.started_by not in (info.run_id, info.forked_from):
            raise RunError(f"run {info.run_id} has started no run {run_id}, or it was removed")
        return found

    async def list_children(self) -> Sequence[BackgroundRun]:
        """Return the runs that this one has started and that are not detached, oldest first."""
        with _interrupt_on_error("the runs that this one has started could not be listed"):
            return await self._stored.list_children(self._attempt.info.run_id)

    async def wait_for_any(self, run_ids: Sequence[str], expires_at: datetime | None) -> list[BackgroundRun]:
        """Return those of the runs that have ended.

        Raises:
            Suspend: none has. The call is repeated when one of them ends.
            RunError: this run has not started one of them.
        """
        mailbox = self._attempt.mailbox
        topics = tuple(make_ended_topic(run_id) for run_id in run_ids)
        mailbox.reserved.update(topics)
        found = [await self.read(run_id) for run_id in run_ids]
        ended = [run for run in found if run.outcome is not None]
        if not ended and all(run.started_by != self._attempt.info.run_id for run in found):
            raise RunError(f"a fork cannot wait for {run_ids[0]}, which has not ended: the original is notified")
        if not ended:
            names = ", ".join(f"{run.agent_name} {run.run_id}" for run in found)
            raise Suspend("run", topic=topics[0], other_topics=topics[1:], expires_at=expires_at, reason=names)
        await self._count(ended)
        return ended

    async def _count(self, ended: Sequence[BackgroundRun]) -> None:
        """Take the notices that these runs have ended: each counts once, however often the run is asked for."""
        mailbox, topics = self._attempt.mailbox, {make_ended_topic(run.run_id) for run in ended}
        if not all(map(mailbox.has, topics)):
            with _interrupt_on_error("the notices of ended runs could not be read"):
                mailbox.deliver(await self._stored.read_notices(self._attempt.info.run_id))
        for topic in topics:
            for mail in mailbox.find(topic):
                _take_notice(self._attempt, mail)

    async def send(self, run_id: str, text: str, mail_id: str) -> None:
        """Send a message to a run. The same `mail_id` again sends nothing.

        Raises:
            RunError: this run has not started it, or it has ended.
        """
        await self.read(run_id)
        with _interrupt_on_error(f"a message to run {run_id} could not be sent"):
            is_sent = await self._stored.send(run_id, text, mail_id)
        if not is_sent:
            raise RunError(f"run {run_id} has ended: it reads no more messages")

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, or ask the worker that executes it to. Does nothing if it has ended.

        Raises:
            RunError: this run has not started it.
        """
        await self.read(run_id)
        with _interrupt_on_error(f"run {run_id} could not be cancelled"):
            await shielded(self._stored.cancel(run_id))


@contextmanager
def _interrupt_on_error(problem: str) -> Iterator[None]:
    """Interrupt the run if its store raises an error: it must never become the result of a step, which is repeated."""
    try:
        yield
    except Exception as exc:  # a store may raise anything
        if isinstance(exc, RunError) and not isinstance(exc, RunLost):  # which is about the other run
            raise
        raise SaveFailed(f"{problem}: {exc}") from exc


def get_output(run: BackgroundRun) -> Any:
    """Return the output of a run that has ended, in its stored form.

    Raises:
        RunFailed: it failed. RunCancelled: it was cancelled.
    """
    if run.status is RunStatus.CANCELLED:
        raise RunCancelled(f"run {run.run_id} was cancelled")
    if run.outcome is None or run.outcome.error is not None:
        raise RunFailed(run.run_id, run.reason)
    return run.outcome.output


def list_notices(attempt: Attempt) -> list[Mail]:
    """Return the notices about runs that have ended, except those that a call waits for."""
    mailbox = attempt.mailbox
    unread = [mail for mail in mailbox.unread.values() if mail.topic.startswith(ENDED_TOPIC)]
    if not unread:
        return []
    awaited = {topic for call in attempt.state.calls.undecided for topic in call.topics} | mailbox.reserved
    return [mail for mail in unread if mail.topic not in awaited]


def take_notices(attempt: Attempt) -> list[Mail]:
    """Take the notices about runs that have ended, except those that a call waits for. Their usage is counted.

    The next save consumes them: the caller changes the state before it awaits anything.
    """
    taken = list_notices(attempt)
    for mail in taken:
        _take_notice(attempt, mail)
    return taken


def format_notice(mail: Mail) -> str:
    """Return a notice as a message for the model."""
    notice = msgspec.json.decode(mail.body, type=EndNotice)
    return f"Background task {notice.run_id.rpartition(':')[2]} ({notice.agent}) has ended: {notice.status}."


def _take_notice(attempt: Attempt, mail: Mail) -> None:
    notice = msgspec.json.decode(mail.body, type=EndNotice)
    attempt.mailbox.take(mail)
    attempt.state.child_usage = attempt.state.child_usage + notice.usage
    attempt.record_event(
        ChildFinished(
            run_id=attempt.info.run_id,
            step=attempt.state.steps + 1,
            child_run_id=notice.run_id,
            status=notice.status,
        )
    )
