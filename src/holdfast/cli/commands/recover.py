"""holdfast recover"""

import asyncio
import sys
from contextlib import suppress

from holdfast.app import App
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import RunFilter
from holdfast.cli.formatting import utc_now
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_diagnostic, print_json
from holdfast.cli.progress import ProgressDisplay, ProgressListener
from holdfast.cli.runner import report_force_quit, run_app
from holdfast.runtime.worker import RecoveryReport, RecoveryStatus


def recover(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Resume every interrupted run of these agents, in one pass.

    Exits with 1 if a run failed or could not be read.
    """
    listener = ProgressListener() if quiet else ProgressDisplay(many=True)
    app = build_app(load_object(code), code, store=store, create=False, listener=listener)
    delayed: list[str] = []

    async def work() -> RecoveryReport:
        report = await app.recover()
        with suppress(StoreClosed):  # a signal ended the pass
            delayed.extend(await _list_delayed(app))
        return report

    with listener:
        report = asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    if as_json:
        runs = [
            {"run_id": run_id, "status": status, "reason": report.reasons.get(run_id, "")}
            for run_id, status in report.statuses.items()
        ]
        print_json({"runs": runs, "delayed": delayed})
    else:
        print(report)
    if delayed:
        print_diagnostic(f"{len(delayed)} runs are delayed by their backoff: {', '.join(delayed[:5])}")
    sys.exit(1 if report.runs_with(RecoveryStatus.FAILED) or report.runs_with(RecoveryStatus.DAMAGED) else 0)


async def _list_delayed(app: App) -> list[str]:
    """Return the runs that this pass skipped because of their backoff after repeated crashes."""
    if app.store is None:
        return []
    now = utc_now()
    return [
        record.run_id
        async for record in app.store.list_runs(RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.not_before > now
    ]
