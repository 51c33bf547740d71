"""holdfast doctor"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.code import agents_of, find
from holdfast.cli.errors import CommandError, one_line
from holdfast.cli.examination import Examination, Finding
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import STYLES, Paper, print_json
from holdfast.cli.stores import store_for, url_of, waiting_is_told, without_secret
from holdfast.run.agent import AgentSource


def doctor(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Also: could this code go on with the runs?", show_default=False),
    ] = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Look for what is wrong with a store and its runs.

    Changes nothing; exits with 1 if something is wrong. With MODULE:APP it is a preflight before a deploy: would every
    stored run load and go on under this code? The App's own store is looked at then, unless --store names another.
    """
    found = find(code) if code else None
    own = found.store if isinstance(found, App) and not store else None
    where = "the App's own store" if own is not None else without_secret(url_of(store))
    findings = asyncio.run(_examine(own, store, where, agents_of(code) if code else None))
    if as_json:
        print_json(findings)
    else:
        paper = Paper()
        for finding in findings:
            paper.line(f"{finding.level:<8} {finding.check}: {finding.detail}", STYLES[finding.level])
    sys.exit(1 if any(finding.level == "wrong" for finding in findings) else 0)


async def _examine(
    own: CheckpointStore | None, store_url: str, where: str, agents: Mapping[str, AgentSource] | None
) -> list[Finding]:
    try:
        store = own if own is not None else store_for(store_url)
        with waiting_is_told():
            await store.open()
    except (CommandError, CheckpointError) as exc:
        return [Finding(check="store", level="wrong", detail=one_line(exc))]
    try:
        return [
            Finding(check="store", level="ok", detail=f"{where} can be opened"),
            *await Examination(store, agents).findings(),
        ]
    finally:
        await store.close()
