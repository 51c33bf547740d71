"""Commands that show one run: show and tail."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast.checkpoint.progress import AttemptRecord
from holdfast.checkpoint.record import RunFilter, RunStatus, StoredRun
from holdfast.checkpoint.store import iter_runs
from holdfast.cli.loading import get_tool_effects, load_agents
from holdfast.cli.opening import open_client, open_store
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import STYLES, Output, format_value, one_line, print_diagnostic, print_json, print_json_line
from holdfast.cli.printing import (
    EventPrinter,
    PrintedCall,
    TranscriptPrinter,
    format_call,
    format_command,
    format_pick,
    format_time,
)
from holdfast.core.run.run_events import Event, HistoryRewritten, ReaderTooSlow, StatusChanged
from holdfast.runtime.operations.verdicts import PICK, Verdict, read_verdict
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary, describe_status, describe_times, summarize_run
from holdfast.runtime.reading.run_views import RunDetails, read_details
from holdfast.runtime.reading.transcript import CallRecord, Transcript, TranscriptItem, get_loop_name, read_record_waits

_WAITING_STATES = ("needs approval", "needs result", "waiting")


def show(
    run: RunArgument,
    full: Annotated[bool, typer.Option("--full", help="Do not truncate long texts.")] = False,
    app: Annotated[
        str,
        typer.Option("--app", metavar="MODULE:ATTR", help="The run's App or agent, to show the effects of its tools."),
    ] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a run: status, attempts, transcript, calls, phases and times.

    Needs no code of agents. With --app it also shows the effects of the tools.
    """
    stored, children, pick = asyncio.run(_load(store, run))
    transcript = Transcript(
        get_loop_name(stored.record), get_tool_effects(load_agents(app).get(stored.record.agent_name))
    )
    items = transcript.read(stored.entries)
    transcript.close(stored.record)
    details = read_details(stored)
    waits = [PrintedCall.make(call, store) for call in read_record_waits(stored.record)]
    if as_json:
        parts = _describe_parts(items, transcript, children)
        print_json({"run": details, **parts, "waits": waits, "pick": pick})
        return
    output = Output()
    _print_summary(output, details, pick)
    _print_attempts(output, details.attempts)
    printer = TranscriptPrinter(output, full=full)
    for item in items:
        printer.print_item(item)
    _print_open_calls_and_children(output, transcript, children)
    for wait in waits:
        if wait.command:
            print_diagnostic(f"{wait.action} with: {wait.command}")
    waiting = [call for call in transcript.unanswered if call.state in ("needs approval", "needs result")]
    if waiting and stored.record.status is RunStatus.PARKED:
        print_diagnostic(f"answer with: {_format_answer_command(run, waiting, store)}")


async def _load(store_url: str, run_id: str) -> tuple[StoredRun, list[RunSummary], Verdict | None]:
    async with open_store(store_url) as store:
        stored = await store.load(run_id)
        children = [summarize_run(record) async for record in iter_runs(store, RunFilter(parent_run_id=run_id))]
        return stored, children, await read_verdict(store, run_id, PICK)


def _describe_parts(items: list[TranscriptItem], transcript: Transcript, children: list[RunSummary]) -> dict[str, Any]:
    steps = [item for item in items if item.kind == "step"]
    phases = [item for item in items if item.kind == "phase"]
    return {
        "transcript": [item for item in items if item.kind not in ("begin", "step", "phase", "outcome")],
        "calls": transcript.calls,
        "phases": [{"name": item.text, "output": item.content, "step": item.step} for item in phases],
        "timeline": [
            {
                "step": item.step,
                "at": item.at,
                "tokens": item.usage.total_tokens,
                "cost_usd": item.usage.cost_usd,
                "retries": item.retries,
            }
            for item in steps
        ],
        "outcome": next(
            ({"output": item.content, "error": item.text or None} for item in items if item.kind == "outcome"), None
        ),
        "children": children,
    }


def _print_summary(output: Output, run: RunDetails, pick: Verdict | None) -> None:
    now = utc_now()
    rows = [
        ("run", run.run_id),
        ("status", f"{run.status}: {run.description}"),
        ("reason", "" if run.reason in run.description else run.reason),
        ("agent", run.agent),
        ("caller", run.caller),
        ("parent", run.parent or ""),
        ("fork of", f"{run.forked_from}, at {run.forked_at}" if run.forked_from else ""),
        ("prompt", one_line(run.prompt, 200)),
        ("labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())),
        ("created", _format_time_and_age(run.created_at, now)),
        ("updated", _format_time_and_age(run.updated_at, now)),
        ("expires", _format_time_and_age(run.expires_at, now)),
        ("wakes", _format_time_and_age(run.wake_at, now)),
        ("time", describe_times(run)),
        ("used", _format_usage(run)),
        ("progress", "; ".join(map(str, run.progress))),
        ("failed", formatting.format_count(run.failed_calls, "call") if run.failed_calls else ""),
        ("size", formatting.format_size(run.size)),
        ("owner", f"{run.owner} ({'alive' if run.owner_alive else 'dead'})" if run.owner else ""),
        ("strikes", str(run.strikes) if run.strikes else ""),
        ("retries", _format_retries(run, now)),
        ("cancel", "requested" if run.cancel_requested else ""),
        ("picked", format_pick(pick) if pick else ""),
    ]
    for name, value in rows:
        if value:
            output.print_line(f"{name:<8} {value}", "bold" if name in ("run", "status") else "")
    output.print_line()


def _print_attempts(output: Output, attempts: Sequence[AttemptRecord]) -> None:
    """Print the attempts of a run that one worker did not execute from its beginning to its end."""
    if len(attempts) < 2:
        return
    rows = [
        [
            str(attempt.number),
            attempt.worker_id,
            format_time(attempt.began_at) if attempt.began_at else "",
            format_time(attempt.saved_at) if attempt.saved_at else "",
            attempt.end or "works",
        ]
        for attempt in attempts
    ]
    output.print_table(["ATTEMPT", "WORKER", "BEGAN", "LAST SAVE", "ENDED"], rows, right=("ATTEMPT",))
    output.print_line()


def _format_retries(run: RunSummary, now: datetime) -> str:
    if not run.retries:
        return ""
    next_at = ""
    if run.next_retry_at is not None and run.next_retry_at > now:
        next_at = f"; next at {format_time(run.next_retry_at)}"
    return f"{run.retries}, last after {one_line(run.retry_error, 200)}{next_at}"


def _format_time_and_age(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{format_time(at)}, {formatting.format_age(now - at)}"


def _format_usage(run: RunSummary) -> str:
    tokens = f"{formatting.format_number(run.usage.total_tokens)} tokens"
    cost = f", {formatting.format_cost(run.usage.cost_usd)}" if run.usage.cost_usd else ""
    return f"{formatting.format_count(run.steps, 'step')}, {tokens}{cost}"


def _print_open_calls_and_children(output: Output, transcript: Transcript, children: list[RunSummary]) -> None:
    if transcript.unanswered:
        output.print_line()
        for call in transcript.unanswered:
            note = call.metadata or call.reason
            said = f" {one_line(format_value(note), 200)}" if note else ""
            # A person decides by the arguments: those of a call that waits are not truncated.
            printed = format_call(call, full=call.state in _WAITING_STATES)
            output.print_line(f"{call.state}: {printed}{said}", STYLES.get(call.state, ""))
    if children:
        output.print_line()
        rows = [[child.run_id, child.status, child.agent, formatting.format_number(child.steps)] for child in children]
        output.print_table(["CHILD", "STATUS", "AGENT", "STEPS"], rows, right=("STEPS",))


def _format_answer_command(run_id: str, calls: list[CallRecord], store: str) -> str:
    """Return the command that answers the calls. The agent's code encodes the answers."""
    answers = [f"{call.call_id}={'true' if call.state == 'needs approval' else 'RESULT'}" for call in calls]
    options = [part for answer in answers for part in ("--resolve", answer)]
    return format_command("unpark", store, run_id, options=("--app", "MODULE:ATTR", *options))


def tail(
    run: RunArgument,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Start with the last N events; 0 for all.")
    ] = 20,
    after: Annotated[
        str, typer.Option("--after", metavar="CURSOR", help="Start after this cursor, which --json has shown.")
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Do not truncate long texts.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Follow a run until it is terminal, in whichever process it is executed.

    Crashes, resumes and compactions do not end it. Ctrl-C ends the command, not the run. --json prints each event as a
    line of JSON, the text of replies in progress included.
    """
    try:
        asyncio.run(_follow(store, run, after or None, _TailPrinter(0 if after else lines, full=full, as_json=as_json)))
    except KeyboardInterrupt:
        print_diagnostic(f"stopped following; run {run} is not affected")


class _TailPrinter:
    """Prints the last durable events that there are, and then each event."""

    def __init__(self, lines: int, *, full: bool, as_json: bool) -> None:
        self._printer = None if as_json else EventPrinter(Output(), full=full)
        #: Events before the present is shown, of which only the last are printed.
        self._missed: deque[Event] | None = deque(maxlen=lines or None)

    def print(self, event: Event) -> None:
        if self._missed is not None and event.cursor is not None:
            self._missed.append(event)
            return
        missed, self._missed = self._missed or (), None
        for each in (*missed, event):
            self._print_now(each)

    def _print_now(self, event: Event) -> None:
        if isinstance(event, StatusChanged):
            print_diagnostic(_describe_status(event))
        elif isinstance(event, HistoryRewritten):
            print_diagnostic("the conversation was rewritten: only its new messages are shown")
        if self._printer is None:
            print_json_line(event)
        else:
            self._printer.print_event(event)


def _describe_status(event: StatusChanged) -> str:
    status = RunStatus(event.status)
    details = describe_status(status, event.reason)
    return f"run {event.run_id} is {status}" + (f": {details}" if details else "")


async def _follow(store_url: str, run_id: str, after: str | None, printer: _TailPrinter) -> None:
    async with open_client(store_url) as client:
        while True:
            try:
                async for event in client.events(run_id, after):
                    printer.print(event)
                return
            except ReaderTooSlow as slow:
                after = slow.cursor
