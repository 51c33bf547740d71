"""holdfast show"""

import asyncio
from typing import Annotated, Any

import typer

from holdfast.checkpoint.record import RunFilter, StoredRun
from holdfast.cli import amounts
from holdfast.cli.code import agents_of, effects_of
from holdfast.cli.listing import Listed, listed, now
from holdfast.cli.options import JsonOption, RunArgument, StoreOption
from holdfast.cli.output import Paper, one_of, print_json
from holdfast.cli.stores import opened
from holdfast.cli.telling import Teller, call_text, clock
from holdfast.cli.transcript import Item, Transcript


def show(
    run: RunArgument,
    full: Annotated[bool, typer.Option("--full", help="Do not cut long texts short.")] = False,
    app: Annotated[
        str, typer.Option("--app", metavar="MODULE:ATTR", help="The run's App or agent, to see what its tools do.")
    ] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show how a run stands, its transcript, calls, phases and times.

    No agent's code is needed; with --app the effects of the tools are shown, too.
    """
    stored, children = asyncio.run(_load(store, run))
    transcript = Transcript(effects_of(agents_of(app).get(stored.record.agent_name)))
    items = transcript.read(stored.entries)
    transcript.close(live=stored.record.owner_alive, over=stored.record.over)
    shown = listed(stored.record)
    if as_json:
        print_json(_as_data(shown, items, transcript, children))
        return
    paper = Paper()
    _head(paper, shown)
    teller = Teller(paper, full=full)
    for item in items:
        teller.tell(item)
    _rest(paper, transcript, children)


async def _load(store_url: str, run_id: str) -> tuple[StoredRun, list[Listed]]:
    async with opened(store_url) as store:
        stored = await store.load(run_id)
        children = [listed(record) async for record in store.records(RunFilter(parent_run_id=run_id))]
        return stored, children


def _as_data(shown: Listed, items: list[Item], transcript: Transcript, children: list[Listed]) -> dict[str, Any]:
    steps = [item for item in items if item.kind == "step"]
    phases = [item for item in items if item.kind == "phase"]
    return {
        "run": shown,
        "transcript": [item for item in items if item.kind not in ("begin", "step", "phase", "outcome")],
        "calls": transcript.calls,
        "phases": [{"name": item.text, "output": item.content, "step": item.step} for item in phases],
        "timeline": [
            {"step": item.step, "at": item.at, "tokens": item.tokens, "cost_usd": item.cost_usd} for item in steps
        ],
        "outcome": next(
            ({"output": item.content, "error": item.text or None} for item in items if item.kind == "outcome"), None
        ),
        "children": children,
    }


def _head(paper: Paper, run: Listed) -> None:
    at = now()
    rows = [
        ("run", run.run_id),
        ("state", run.status + (f": {run.reason}" if run.reason else "")),
        ("agent", run.agent),
        ("caller", run.caller),
        ("parent", run.parent or ""),
        ("prompt", one_of(run.prompt, 200)),
        ("labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())),
        ("begun", f"{clock(run.created_at)}, {amounts.duration(at - run.created_at)} ago"),
        ("changed", f"{clock(run.updated_at)}, {amounts.duration(at - run.updated_at)} ago"),
        ("used", f"{run.steps} steps, {amounts.number(run.tokens)} tokens {amounts.cost(run.cost_usd)}".strip()),
        ("size", amounts.size(run.size)),
        ("owner", f"{run.owner} ({'alive' if run.owner_alive else 'dead'})" if run.owner else ""),
        ("strikes", f"{run.strikes}, not before {clock(run.not_before)}" if run.strikes else ""),
        ("cancel", "asked for" if run.cancel_requested else ""),
    ]
    for name, value in rows:
        if value:
            paper.line(f"{name:<8} {value}", "bold" if name in ("run", "state") else "")
    paper.line()


def _rest(paper: Paper, transcript: Transcript, children: list[Listed]) -> None:
    if transcript.unanswered:
        paper.line()
        for call in transcript.unanswered:
            paper.line(f"{call.state}: {call_text(call)}", "bold yellow" if call.state == "in doubt" else "")
    if children:
        paper.line()
        rows = [[child.run_id, child.status, child.agent, amounts.number(child.steps)] for child in children]
        paper.table(["CHILD", "STATE", "AGENT", "STEPS"], rows, right=("STEPS",))
