"""RunClient: every operation on stored runs that executes none of them."""

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Unpack

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.claims import cancel_run
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.clock import CLOCK, Clock
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.json_value import JsonValue
from holdfast.core.ports import Telemetry
from holdfast.core.run.info import RunInfo, RunOptions
from holdfast.core.run.prompt import Prompt, dump_prompt
from holdfast.core.run.result import OutputT, Result
from holdfast.core.run.run_events import Event, StatusChanged
from holdfast.core.run.waiting import Answer, WaitingCall
from holdfast.core.trace_context import annotate_submit
from holdfast.core.validation import check_labels
from holdfast.runtime.agent_registry import find_agent, find_loop, resolve_agent
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.operations.conversations import CONVERSATION_LABEL, Conversation
from holdfast.runtime.operations.forking import Fork, make_start
from holdfast.runtime.operations.outcomes import wait_for_result
from holdfast.runtime.operations.store_services import RunHost, StoreServices
from holdfast.runtime.operations.submitting import make_queued_run
from holdfast.runtime.operations.verdicts import PICK, Verdict, read_verdict, record_verdict
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery, get_run, list_runs
from holdfast.stores.from_url import find_store

_SETTINGS = CheckpointSettings()

#: Records that `count` reads at a time.
_COUNT_PAGE = 1_000

NO_STORE = "this App has no store: give it one to submit, recover or resume runs"
NOT_OPEN = "the App is not open: use it as `async with app:`"


class RunClient:
    """Operates on the runs of one store, in whichever process they are executed.

    Used as `async with RunClient.open(url) as client:`. An `App` is a client that also executes runs.
    """

    def __init__(
        self,
        store: RunStore | None,
        agents: Mapping[str, AgentSource] | None = None,
        *,
        settings: CheckpointSettings = _SETTINGS,
        telemetry: Telemetry | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a client, not open.

        Args:
            agents: by name. Their codecs decode messages and results. `None`: runs of any agent are submitted by its
                name, and read as far as that is possible without it.
        """
        #: The store, which redacts if the settings say so.
        self.store: Final = store
        #: The agents, by name.
        self.agents: Final = {} if agents is None else agents
        self._needs_agents = agents is not None
        self._telemetry = telemetry
        self._clock = CLOCK.get() if clock is None else clock
        self._services = None if store is None else StoreServices(store, self.agents, settings, self._clock)
        self._host = RunHost()
        #: Stays true when the client is closed: then its store refuses what is asked of it.
        self._was_opened = False

    @staticmethod
    @asynccontextmanager
    async def open(
        store: RunStore | CheckpointStore | str = "", agents: Mapping[str, AgentSource] | None = None
    ) -> AsyncIterator["RunClient"]:
        """Open a store, and close it at the end. This process is a worker of it only once an operation claims a run.

        Args:
            store: a store or the URL of one. `""` is the default (`HOLDFAST_STORE`, else SQLite under `.holdfast/`).
            agents: as for `RunClient`.

        Raises:
            DefinitionError: it is neither a store nor a URL.
            StoreError: the URL names no store, or the store cannot be opened.
        """
        client = RunClient(find_store(store), agents)
        assert client._services is not None  # only `None` gives no store
        await client._services.open()
        client._was_opened = True
        try:
            yield client
        finally:
            await client._services.close()

    @property
    def _stored(self) -> StoreServices:
        if self._services is None:
            raise DefinitionError(NO_STORE)
        if not self._was_opened:
            raise DefinitionError(NOT_OPEN)
        return self._services

    @property
    def open_store(self) -> RunStore:
        """The store.

        Raises:
            DefinitionError: there is none, or it was never opened.
        """
        return self._stored.store

    @property
    def changes(self) -> ChangeSignal:
        """Tells when the store may have changed. Raises as `open_store`."""
        return self._stored.changes

    def _resolve(self, agent: AgentSource | str) -> AgentSource | str:
        return resolve_agent(self.agents, agent) if self._needs_agents else agent

    # -- runs ---------------------------------------------------------------------------------------------------

    async def submit(
        self,
        agent: AgentSource | str,
        prompt: Prompt = "",
        *,
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        not_before: datetime | None = None,
        connection: Any = None,
        **options: Unpack[RunOptions],
    ) -> str:
        """Queue a run for any worker, this process included. Durable when this returns.

        Idempotent: the id of an earlier run with the same agent and prompt attaches to it, whatever its status.

        Args:
            prompt: text, or content parts (pictures, files) that the agent accepts.
            inputs: structured data for the agent's code, as plain JSON data.
            not_before: workers leave the run alone until then.
            connection: your own connection to the store's PostgreSQL database (psycopg, asyncpg or SQLAlchemy), in a
                transaction. The run exists if and only if that transaction commits.

        Raises:
            DefinitionError: an argument has a wrong type, the agent does not accept the content parts, or the
                connection cannot be used.
            RunConflict: a run with this id has another agent, prompt or inputs.
        """
        info = RunInfo.create(self._resolve(agent), prompt, run_id=run_id, inputs=inputs, **options)
        port_data = annotate_submit(self._telemetry, info)
        return await self._stored.submitter.submit(info, not_before, connection, port_data=port_data)

    async def result(self, run_id: str, *, through_waits: bool = False) -> Result:
        """Wait for the result of a run, in whichever process it is executed.

        Args:
            through_waits: keep waiting while the run waits for a person, a signal or a result from outside.

        Raises:
            RunNotFound: there is no such run, or its retention has passed.
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it needs a person.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        services = self._stored
        return await wait_for_result(services.store, services.changes, self.agents, run_id, through_waits=through_waits)

    async def get(self, run_id: str) -> RunDetails:
        """Return a run's status, progress, times and pending calls, whichever process executes it.

        Raises:
            RunNotFound: there is no such run, or its retention has passed.
            RunDamaged: its journal is corrupt.
        """
        return await get_run(self.open_store, run_id)

    async def list(self, *, limit: int = 50, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
        """Return a page of runs, newest first.

        Args:
            cursor: the `cursor` of the page before.
            query: `status`, `agent`, `caller`, `parent`, `labels`, `since` and `until`; all of them have to match.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            InvalidCursor: the cursor is not one that this store has returned.
        """
        return await list_runs(self.open_store, limit=limit, cursor=cursor, **query)

    async def count(self, **query: Unpack[RunQuery]) -> int:
        """Return how many runs fit a query, as for `list`. Reads the records of all of them, a page at a time."""
        found, cursor = 0, None
        while True:
            page = await self.list(limit=_COUNT_PAGE, cursor=cursor, **query)
            found, cursor = found + len(page.runs), page.cursor
            if cursor is None:
                return found

    async def cancel(self, run_id: str) -> None:
        """Cancel a run and its unfinished children. If another process owns it, ask that process to.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is terminal already.
        """
        await cancel_run(await self._stored.get_claims(), run_id)

    async def unpark(
        self, run_id: str, resolutions: Mapping[str, Any] | None = None, *, by: str = "", via: str = ""
    ) -> None:
        """Make a parked run interrupted and clear its strikes: recovery resumes it.

        Its parked children are unparked with it. To resolve their calls, unpark them first.

        Args:
            resolutions: outcomes of calls in doubt, by call id: the result of a call that happened, `NOT_EXECUTED` for
                one that did not, which is then made, or `UNKNOWN`. The model reads that the outcome of the others is
                unknown.
            by: who found that out, and `via` where, such as `slack`. Both are on record with the call.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is not parked. RunBusy: another process unparks it.
            CheckpointError: a resolution is for a call that is not pending.
        """
        await self._stored.get_claims()
        await self._stored.requeuer.unpark(run_id, resolutions or {}, by=by, via=via)

    async def requeue(self, run_id: str) -> None:
        """Leave a parked, failed or cancelled run, or one that waits for its budget, to the workers, durably.

        Raises:
            RunNotFound: there is no such run. RunBusy: a live worker owns it.
            RunNotClaimable: it is done, or waits for a time or for other mail.
        """
        await self._stored.get_claims()
        await self._stored.requeuer.requeue(run_id)

    async def fork(
        self,
        run_id: str,
        at_step: int,
        *,
        edited: Prompt | None = None,
        results: Mapping[str, Any] | None = None,
        new_id: str | None = None,
    ) -> str:
        """Queue a new run that starts with the state of `run_id` after `at_step`, and return its id.

        The old run is not changed.

        Args:
            edited: replaces the prompt, if `at_step` is 1, or the messages that the run got before this step, which is
                run again. The number of the next step adds a message after the last one.
            results: replace results of the step's calls, by call id.
            new_id: the id of the new run; random by default.

        Raises:
            CheckpointError: the journal has no such call, or no such step: not reached, saved together with a later
                one, or compacted.
            DefinitionError: the agent does not accept the edited message.
            RunExists: there is a run with the new id.
        """
        fork = Fork(at_step=at_step, new_id=new_id, edited=edited, results=dict(results or {}))
        stored = await self.open_store.load(run_id)
        start = make_start(stored, find_loop(self.agents, stored.record.agent_name), fork)
        await self._stored.submitter.create(make_queued_run(start.info, start.progress, start.entries))
        return start.info.run_id

    async def pick(self, run_id: str, result: str, *, by: str = "") -> None:
        """Record which of several results a person has picked. The newest pick counts. Durable when this returns.

        Args:
            run_id: a fan-out, a run with forks, or the parent of several runs.
            result: the id of a model of the fan-out, or the id of a run. Empty takes the pick back.

        Raises:
            RunNotFound: there is no such run.
        """
        await get_record(self.open_store, run_id)
        await record_verdict(self.open_store, run_id, PICK, result, by=by)

    async def get_pick(self, run_id: str) -> Verdict | None:
        """Return the newest pick among the results of a run; `None` if there is none."""
        return await read_verdict(self.open_store, run_id, PICK)

    # -- mail ---------------------------------------------------------------------------------------------------

    async def send(self, run_id: str, content: Prompt, *, id: str | None = None) -> str:
        """Send a message to a run, whichever process executes it. Durable when this returns.

        The run reads it before its next step, exactly once. Returns the id of the message. Sending with the same `id`
        again changes nothing.

        Args:
            content: text, or content parts (pictures, files) that the agent of the run accepts.

        Raises:
            RunNotFound: there is no such run. RunEnded: it is done, failed or cancelled.
            DefinitionError: the content is neither, or the agent does not accept these parts.
        """
        mail_id = await self._stored.mailer.send(run_id, await self._dump_message(run_id, content), id)
        await self._host.on_posted(run_id)
        return mail_id

    async def _dump_message(self, run_id: str, content: Prompt) -> str | builtins.list[JsonValue]:
        """Return a message as plain data. Only the agent of the run knows which content parts it accepts."""
        if isinstance(content, str):
            return content
        agent_name = (await get_record(self.open_store, run_id)).agent_name
        return dump_prompt(agent_name, get_loop(find_agent(self.agents, agent_name)), content)

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> str:
        """Send a signal to a run: a call of the tool `wait_for` with this name returns the payload.

        The signal may come before the wait. Raises as `send`.
        """
        mail_id = await self._stored.mailer.signal(run_id, name, payload, id)
        await self._host.on_posted(run_id)
        return mail_id

    async def pending(
        self,
        *,
        agent: str | None = None,
        caller: str | None = None,
        tool: str | None = None,
        older_than: timedelta | None = None,
    ) -> builtins.list[WaitingCall]:
        """Return the calls of all runs that only `answer` ends: they wait for a person, or for an external result."""
        return await self._stored.mailer.list_pending(agent=agent, caller=caller, tool=tool, older_than=older_than)

    async def find_call(self, run_id: str, call_id: str) -> WaitingCall:
        """Return a call that waits for an answer.

        Raises:
            RunNotFound: there is no such run. NotWaiting: no such call waits.
        """
        return await self._stored.mailer.find_call(run_id, call_id)

    async def answer(
        self, run_id: str, call_id: str, answer: Answer, *, by: str = "", via: str = "", digest: str | None = None
    ) -> None:
        """Answer a call that waits for a person. Durable when this returns; applied exactly once.

        Args:
            answer: `Approve` (with other arguments, if given), `Deny` (the model reads the reason) or `Value`.
            by: who decided.
            via: where, such as `slack`.
            digest: `WaitingCall.digest` of the call that the person saw. Give it: the model may use the id again, and
                an answer that comes late would be for a later call.

        Raises:
            NotWaiting: no such call waits, or `digest` is of another one. AlreadyAnswered: another answer was first.
        """
        await self._stored.mailer.answer(run_id, call_id, answer, by=by, via=via, digest=digest)
        await self._host.on_posted(run_id)

    async def complete_call(self, token: str, result: Any) -> None:
        """Give the result of a call whose tool returns `Deferred`. The token is `current_call().completion_token`.

        The result may come before the tool has returned.

        Raises:
            NotWaiting: the token is not valid, or the wait is over. AlreadyAnswered: there is a result already.
        """
        await self._host.on_posted(await self._stored.mailer.complete_call(token, result))

    # -- conversations ------------------------------------------------------------------------------------------

    def conversation(
        self, agent: AgentSource[OutputT] | str, key: str, **options: Unpack[RunOptions]
    ) -> Conversation[OutputT]:
        """Return the conversation of this agent with this key, from any process. It begins with its first message.

        Args:
            key: such as the id of a chat or a user.
            options: of the conversation, if this call begins it.

        Raises:
            DefinitionError: the agent is not known, or the key is not text.
        """
        check_labels(options.get("labels") or {})
        source = self._resolve(agent)
        if isinstance(source, str):
            source = find_agent(self.agents, source)
        return Conversation(source, key, options, self._stored, self._host)

    async def conversations(self, *, limit: int = 50, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
        """Return a page of conversations, newest first. Arguments and errors as for `list`."""
        query["labels"] = {**(query.get("labels") or {}), **CONVERSATION_LABEL}
        return await self.list(limit=limit, cursor=cursor, **query)

    # -- watching runs ------------------------------------------------------------------------------------------

    def events(self, run_id: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Watch a run, whichever process executes it: an async iterator of `holdfast.events`.

        First come the durable events after the cursor, each exactly once and in order, then the current status and the
        draft of the reply in progress, then live events. The stream ends when the run is done, failed or cancelled. The
        stream of a conversation continues between turns.

        Args:
            after: the `cursor` of an event that this method has returned. `None`: from the beginning.

        Raises:
            RunNotFound: there is no such run. RunDamaged: its journal is corrupt.
            InvalidCursor: the cursor is not one of this run.
            ReaderTooSlow: events were not taken in time. Watch again with its `cursor`.
            StoreClosed: the App was closed.
        """
        return self._stored.hub.stream(run_id, after)

    def watch(self, **query: Unpack[RunQuery]) -> AsyncGenerator[StatusChanged, None]:
        """Watch the status of many runs: an async iterator that ends with the App.

        First comes the status of each run that matches and is not terminal, then each change. A slow watcher gets the
        current status of a run, not each change in between.

        Args:
            query: as for `list`. With `status`, only changes to these statuses.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            StoreClosed: the App was closed.
        """
        return self._stored.hub.watch(**query)
