"""holdfast worker"""

import asyncio

from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import JsonEventPrinter, ProgressDisplay, ProgressListener
from holdfast.cli.runner import run_app


def worker(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Take queued and interrupted runs of these agents until stopped.

    SIGTERM and Ctrl-C drain: nothing new is taken, runs under way come to their next step boundary and are left for
    the other workers. --json prints events as lines of JSON.
    """
    watcher = JsonEventPrinter() if as_json else ProgressListener() if quiet else ProgressDisplay(many=True)
    app = build_app(load_object(code), code, store=store, create=True, listener=watcher)
    if app.store is None:
        raise CommandError("this App has no store: give it one, or name one with --store")

    async def work() -> None:
        watcher.print_status(f"serving {', '.join(sorted(app.agents))}; Ctrl-C or SIGTERM drains", "bold")
        await app.serve()

    with watcher:
        asyncio.run(
            run_app(
                app, watcher, work, on_force_quit=lambda: print_diagnostic("stopped at once; the runs stay interrupted")
            )
        )
    print_diagnostic("drained")
