"""holdfast worker"""

import asyncio
import logging

from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import JsonEventPrinter, ProgressDisplay, ProgressListener
from holdfast.cli.runner import report_force_quit, run_app
from holdfast.core.observation.log import LIFECYCLE_LOG


def worker(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Execute queued and interrupted runs of these agents until stopped.

    SIGTERM and Ctrl-C drain: the worker claims no more runs, and interrupts its runs at their next step boundary for
    the other workers. --json prints events as lines of JSON.
    """
    listener = JsonEventPrinter() if as_json else ProgressListener() if quiet else ProgressDisplay(many=True)
    if quiet:
        LIFECYCLE_LOG.setLevel(logging.WARNING)  # what needs a person is shown all the same
    app = build_app(load_object(code), code, store=store, create=True, listener=listener)
    if app.store is None:
        raise CommandError("this App has no store: name one with --store")

    async def work() -> None:
        listener.print_status(f"serving {', '.join(sorted(app.agents))}; Ctrl-C or SIGTERM drains", "bold")
        await app.serve()

    with listener:
        asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    print_diagnostic("drained")
