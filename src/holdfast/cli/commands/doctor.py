"""holdfast doctor"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.doctor import SAMPLE_SIZE, Doctor, Finding
from holdfast.cli.errors import CommandError, format_error
from holdfast.cli.loading import load_agents, load_object
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import STYLES, Output, print_json
from holdfast.cli.stores import make_store, report_slow_open, resolve_store_url
from holdfast.core.agent import AgentSource
from holdfast.db.url import redact_url


def doctor(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Also check that this code can resume the runs.", show_default=False),
    ] = "",
    all_runs: Annotated[
        bool, typer.Option("--all", help="Read the journals of all runs, also of many that are queued or have ended.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check a store and its runs.

    Changes nothing. Exits with 1 if something is wrong. With MODULE:APP it is a preflight check before a deploy: can
    this code load and resume every stored run? It then checks the App's own store, unless --store names another.
    """
    found = load_object(code) if code else None
    own = found.store if isinstance(found, App) and not store else None
    where = "the App's own store" if own is not None else redact_url(resolve_store_url(store))
    findings = asyncio.run(_run_checks(own, store, where, load_agents(code) if code else None, all_runs))
    if as_json:
        print_json(findings)
    else:
        output = Output()
        for finding in findings:
            output.print_line(f"{finding.level:<8} {finding.check}: {finding.detail}", STYLES[finding.level])
    sys.exit(1 if any(finding.level == "wrong" for finding in findings) else 0)


async def _run_checks(
    own: CheckpointStore | None,
    store_url: str,
    where: str,
    agents: Mapping[str, AgentSource] | None,
    all_runs: bool,
) -> list[Finding]:
    try:
        store = own if own is not None else make_store(store_url)
        with report_slow_open():
            await store.open()
    except (CommandError, CheckpointError) as exc:
        return [Finding(check="store", level="wrong", detail=format_error(exc))]
    try:
        return [
            Finding(check="store", level="ok", detail=f"{where} can be opened"),
            *await Doctor(store, agents, sample=None if all_runs else SAMPLE_SIZE).run(),
        ]
    finally:
        await store.close()
