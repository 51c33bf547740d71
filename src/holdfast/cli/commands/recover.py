"""holdfast recover"""

import asyncio
import sys
from contextlib import suppress

from holdfast.app import App
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import RunFilter
from holdfast.cli.listing import utc_now
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_diagnostic, print_json
from holdfast.cli.progress import ProgressDisplay, ProgressListener
from holdfast.cli.runner import run_app
from holdfast.runtime.worker import RecoveryReport, RecoveryStatus


def recover(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Go on with every interrupted run of these agents, in one pass.

    Each is driven to its end. Exits with 1 if one of them failed or could not be read.
    """
    watcher = ProgressListener() if quiet else ProgressDisplay(many=True)
    app = build_app(load_object(code), code, store=store, create=False, listener=watcher)
    waiting: list[str] = []

    async def work() -> RecoveryReport:
        report = await app.recover()
        with suppress(StoreClosed):  # a signal ended the pass
            waiting.extend(await _list_delayed(app))
        return report

    with watcher:
        report = asyncio.run(
            run_app(
                app, watcher, work, on_force_quit=lambda: print_diagnostic("stopped at once; the runs stay interrupted")
            )
        )
    if as_json:
        runs = [
            {"run_id": run_id, "fate": fate, "reason": report.reasons.get(run_id, "")}
            for run_id, fate in report.statuses.items()
        ]
        print_json({"runs": runs, "waiting": waiting})
    else:
        print(report)
    if waiting:
        print_diagnostic(f"{len(waiting)} runs wait until their backoff is over: {', '.join(waiting[:5])}")
    sys.exit(1 if report.runs_with(RecoveryStatus.FAILED) or report.runs_with(RecoveryStatus.DAMAGED) else 0)


async def _list_delayed(app: App) -> list[str]:
    """Runs that this pass left alone because their owners died one after the other."""
    if app.store is None:
        return []
    at = utc_now()
    return [
        record.run_id
        async for record in app.store.list_runs(RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.not_before > at
    ]
