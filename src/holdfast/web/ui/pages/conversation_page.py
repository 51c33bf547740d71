"""Conversations: the list with the last message and whose turn it is, and the thread of one."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.core.run.mail import Mail
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.turns import INPUT_TOPICS, TurnMessage
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.operations.conversations import CONVERSATION_LABEL
from holdfast.runtime.reading.formatting import cut_text
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import Transcript, get_loop_name, read_record_waits
from holdfast.web.api.conversation_operations import open_conversation, post_message
from holdfast.web.api.operation import Context
from holdfast.web.auth import list_visible
from holdfast.web.sse import EventStreamResponse
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.run_view.actions import read_form, redirect
from holdfast.web.ui.run_view.run_stream import LiveUpdates, RunChanges, generate_updates
from holdfast.web.ui.run_view.run_window import TranscriptWindow, read_number, read_window
from holdfast.web.ui.site import Site, can_start, get_principal
from holdfast.web.ui.tasks import list_tasks

#: Conversations of the list, and entries of each that are read for its last message.
_LIMIT, _TAIL = 40, 12
_LAST = 120


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    run: RunSummary
    #: Who said the last words, and what.
    last_by: str
    last: str
    queued: int
    #: The look and the words of whose turn it is.
    look: str
    turn: str


class TalkReader:
    """Reads the list. The last message of a conversation is read again once its journal has grown."""

    def __init__(self, site: Site, request: Request) -> None:
        self._site, self._principal = site, get_principal(request)
        self._words = request.query_params.get("q", "").lower().split()
        self._known: dict[str, tuple[tuple[int, datetime], tuple[str, str, int]]] = {}

    async def read(self) -> list[Talk]:
        page = await list_visible(self._site.store, self._principal, limit=_LIMIT, labels=CONVERSATION_LABEL)
        talks = [await self._read_talk(record) for record in page.records]
        talks.sort(key=_get_time, reverse=True)
        return [talk for talk in talks if all(word in _get_text(talk) for word in self._words)]

    async def _read_talk(self, record: RunRecord) -> Talk:
        run, key = summarize_run(record), (record.next_seq, record.updated_at)
        known = self._known.get(record.run_id)
        if known is None or known[0] != key:
            known = key, await self._read_last(record, run)
            self._known[record.run_id] = known
        last_by, last, queued = known[1]
        look, turn = describe_turn(run, read_record_waits(record), queued)
        return Talk(run=run, last_by=last_by, last=last, queued=queued, look=look, turn=turn)

    async def _read_last(self, record: RunRecord, run: RunSummary) -> tuple[str, str, int]:
        try:
            stored = await self._site.store.load(record.run_id, after=max(-1, record.next_seq - _TAIL - 1))
        except CheckpointError:  # removed meanwhile, or damaged: its page says which
            return "", "", 0
        queued = list_queued(stored.mail)
        if queued:
            return run.caller or "user", cut_text(queued[-1], _LAST), len(queued)
        items = Transcript(get_loop_name(record)).read(stored.entries)
        said = [item for item in items if item.kind in ("user", "reply") and item.text]
        if not said:
            return "", "", 0
        by = run.agent if said[-1].kind == "reply" else run.caller or "user"
        return by, cut_text(said[-1].text, _LAST), 0


def _get_time(talk: Talk) -> datetime:
    return talk.run.updated_at


def _get_text(talk: Talk) -> str:
    return f"{talk.run.conversation} {talk.run.agent} {talk.run.caller} {talk.last}".lower()


def describe_turn(run: RunSummary, waits: Sequence[WaitingCall], queued: int) -> tuple[str, str]:
    """Return the look and the words of whose turn it is."""
    asked = next((call for call in waits if call.needs_answer), None)
    if run.status is RunStatus.WAITING and asked is not None:
        return "waiting", "approval" if asked.kind == "approval" else "question"
    if run.status in (RunStatus.DONE, RunStatus.FAILED, RunStatus.PARKED, RunStatus.CANCELLED):
        return run.status.value, "ended" if run.status is RunStatus.DONE else run.status.value
    if run.status is RunStatus.WAITING and not queued:
        return ("waiting", "waits") if waits else ("idle", "your turn")
    return "running", "answers"


def list_queued(mail: Sequence[Mail]) -> list[str]:
    """Return the messages that no turn has taken yet."""
    found: list[str] = []
    for each in mail:
        if each.topic in INPUT_TOPICS:
            try:
                found.append(summarize_prompt(TurnMessage.from_mail(each).prompt))
            except msgspec.MsgspecError:  # of a newer version
                found.append("")
    return found


async def show_conversations(site: Site, request: Request) -> Response:
    """Show the list."""
    talks = await TalkReader(site, request).read()
    return await _render(site, request, talks, None)


async def stream_conversations(site: Site, request: Request) -> Response:
    """Send the list whenever it has changed."""
    reader = TalkReader(site, request)
    opened = request.query_params.get("opened", "")

    async def read() -> Fragment:
        talks = await reader.read()
        render = partial(site.render_text, request, "conversation_list.html", talks=talks, opened=opened, query="")
        return Fragment(talks, render)

    return stream_fragments(site.app.changes, get_principal(request), read)


async def show_conversation(site: Site, request: Request) -> Response:
    """Show one conversation beside the list."""
    record = await site.get_record(request)
    if not summarize_run(record).conversation:
        return redirect(request, f"/runs/{record.run_id}", "")
    window = await read_window(site.store, record, before=read_number(request.query_params.get("before")))
    talks = await TalkReader(site, request).read()
    return await _render(site, request, talks, make_thread(site, request, window))


async def _render(site: Site, request: Request, talks: Sequence[Talk], thread: dict[str, Any] | None) -> Response:
    principal = get_principal(request)
    return site.render(
        request,
        "conversations.html",
        section="conversations",
        talks=talks,
        thread=thread,
        opened="" if thread is None else thread["run"].run_id,
        query=request.query_params.get("q", ""),
        can_begin=can_start(site, principal) and "send" in principal.scopes,
        pending_count=await count_needs(site.store, principal),
        **(thread or {}),
    )


def make_thread(site: Site, request: Request, window: TranscriptWindow) -> dict[str, Any]:
    """Return the context of one conversation."""
    principal, record = get_principal(request), window.record
    run, waits = summarize_run(record), () if record.is_terminal else read_record_waits(record)
    queued = list_queued(window.mail) if window.later is None else []
    look, turn = describe_turn(run, waits, len(queued))
    known_agent = record.agent_name in site.app.agents
    is_busy = not record.is_terminal and (decode(record.progress, Progress).turn is not None or bool(queued))
    return {
        "run": run,
        "window": window,
        "look": look,
        "turn": turn,
        "queued": queued,
        "is_busy": is_busy,
        "is_live": not record.is_terminal,
        "tasks": list_tasks(record, [call for call in waits if call.topic not in window.answered]),
        "can_answer": "answer" in principal.scopes,
        "can_send": "send" in principal.scopes and known_agent and not record.is_terminal,
        "known_agent": known_agent,
        "back": "conversation",
        "show_run": False,
    }


class ThreadUpdates(LiveUpdates):
    """What one reader has of a thread. Each update reads the store once."""

    def __init__(self, site: Site, request: Request) -> None:
        self._site, self._request = site, request

    async def begin(self, record: RunRecord) -> str:
        """Return the whole thread."""
        self._record = record
        return await self._render("")

    async def render(self, changes: RunChanges) -> str:
        """Return the thread if it has changed, and the text of the reply in progress."""
        if changes.has_entries or changes.has_children:
            changes.has_entries = changes.has_children = False
            return await self._render(changes.draft)
        return self._site.render_text(self._request, "draft.html", draft=changes.draft)

    async def _render(self, draft: str) -> str:
        window = await read_window(self._site.store, self._record)
        self._record = window.record
        get_principal(self._request).check_visible(window.record.run_id, window.record.caller_id)
        context = make_thread(self._site, self._request, window)
        return self._site.render_text(self._request, "thread_live.html", **context, draft=draft)


async def stream_conversation(site: Site, request: Request) -> Response:
    """Send the thread whenever it has changed."""
    record = await site.get_record(request)
    frames = generate_updates(ThreadUpdates(site, request), record, RunChanges(site.app, record))
    return EventStreamResponse(frames, expires_at=get_principal(request).expires_at)


async def begin_conversation(site: Site, request: Request) -> Response:
    """Begin a conversation with its first message."""
    principal = get_principal(request)
    principal.require("send")
    form = await read_form(request)
    agent, text = form.get("agent", ""), form.get("text", "").strip()
    if not text or not form.get("key", "").strip():
        raise DefinitionError("a conversation needs a key and a first message")
    context = Context(site.app, principal, request, None)
    conversation = await open_conversation(context, agent, form["key"].strip())
    await post_message(context, conversation, text)
    return redirect(request, f"/conversations/{conversation.run_id}", "sent")
