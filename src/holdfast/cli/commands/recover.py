"""holdfast recover"""

import asyncio
import sys
from contextlib import suppress

from holdfast.app import App
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.recovery import Fate, RecoveryReport
from holdfast.cli.code import app_of, find
from holdfast.cli.driving import drive
from holdfast.cli.listing import now
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_json, talk
from holdfast.cli.progress import Display, Watcher


def recover(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Go on with every interrupted run of these agents, in one pass.

    Each is driven to its end. Exits with 1 if one of them failed or could not be read.
    """
    watcher = Watcher() if quiet else Display(many=True)
    app = app_of(find(code), code, store=store, create=False, delivery=watcher)
    waiting: list[str] = []

    async def work() -> RecoveryReport:
        report = await app.recover()
        with suppress(StoreClosed):  # a signal ended the pass
            waiting.extend(await _waiting(app))
        return report

    with watcher:
        report = asyncio.run(
            drive(app, watcher, work, stopped_at_once=lambda: talk("stopped at once; the runs stay interrupted"))
        )
    if as_json:
        runs = [
            {"run_id": run_id, "fate": fate, "reason": report.reasons.get(run_id, "")}
            for run_id, fate in report.fates.items()
        ]
        print_json({"runs": runs, "waiting": waiting})
    else:
        print(report)
    if waiting:
        talk(f"{len(waiting)} runs wait until their backoff is over: {', '.join(waiting[:5])}")
    sys.exit(1 if report.of(Fate.FAILED) or report.of(Fate.DAMAGED) else 0)


async def _waiting(app: App) -> list[str]:
    """Runs that this pass left alone because their owners died one after the other."""
    if app.store is None:
        return []
    at = now()
    return [
        record.run_id
        async for record in app.store.records(RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.not_before > at
    ]
