"""The request of one step: the messages that the model read before it replied."""

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.transcript import Transcript, TranscriptItem, get_loop_name
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.run_view.run_steps import FOLD_LENGTH, Content, Numbering
from holdfast.web.ui.run_view.run_window import find_step, read_number, read_step_number
from holdfast.web.ui.site import Site, get_principal

#: Messages that the page shows: the newest.
_MAX_MESSAGES = 100
_MESSAGES = ("system", "user", "thinking", "reply", "result", "resolution", "message")


class RequestMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the request."""

    item: TranscriptItem
    #: Its text; of a reply then the arguments of each call.
    contents: Sequence[Content]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the model read before the reply of one step."""

    step: int
    model: str
    #: The newest. `total` counts all.
    messages: Sequence[RequestMessage]
    total: int


async def show_request(site: Site, request: Request) -> Response:
    """Show the messages that the model read at one step."""
    record = await site.get_record(request)
    number = read_number(request.path_params["step"])
    entries = (await site.store.load(record.run_id)).entries
    asked = await asyncio.to_thread(build_request, get_loop_name(record), entries, number)
    if asked is None:
        raise RunNotFound(record.run_id)
    run, needs = summarize_run(record), await count_needs(site.store, get_principal(request))
    return site.render(request, "request.html", run=run, asked=asked, pending_count=needs)


def build_request(loop: str, entries: Sequence[Entry], number: int) -> ModelRequest | None:
    """Return the request of a step; `None` if the journal has no such step. Each phase is a conversation of its own."""
    end = find_step(entries, number)
    if not entries or entries[end].kind is not EntryKind.STEP or read_step_number(entries[end]) != number:
        return None
    last_end = max((at for at in range(end) if entries[at].kind is EntryKind.STEP), default=-1)
    start = max((at for at in range(end) if entries[at].kind is EntryKind.PHASE), default=-1) + 1
    transcript, numbering = Transcript(loop), Numbering(FOLD_LENGTH)
    found: list[RequestMessage] = []
    for at in range(start, end + 1):
        for item in transcript.read([entries[at]]):
            contents = [content for _, content in numbering.read(item)]
            if item.kind == "reply" and at > last_end:
                return ModelRequest(step=number, model=item.model, messages=found[-_MAX_MESSAGES:], total=len(found))
            if item.kind in _MESSAGES:
                found.append(RequestMessage(item=item, contents=contents))
    return None
