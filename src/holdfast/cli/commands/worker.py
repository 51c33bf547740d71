"""holdfast worker"""

import asyncio

from holdfast.cli.code import app_of, find
from holdfast.cli.driving import drive
from holdfast.cli.errors import CommandError
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import talk
from holdfast.cli.progress import Display, EventLines, Watcher


def worker(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Take queued and interrupted runs of these agents until stopped.

    SIGTERM and Ctrl-C drain: nothing new is taken, runs under way come to their next step boundary and are left for
    the other workers. --json prints events as lines of JSON.
    """
    watcher = EventLines() if as_json else Watcher() if quiet else Display(many=True)
    app = app_of(find(code), code, store=store, create=True, delivery=watcher)
    if app.store is None:
        raise CommandError("this App has no store: give it one, or name one with --store")

    async def work() -> None:
        watcher.say(f"serving {', '.join(sorted(app.agents))}; Ctrl-C or SIGTERM drains", "bold")
        await app.serve()

    with watcher:
        asyncio.run(
            drive(app, watcher, work, stopped_at_once=lambda: talk("stopped at once; the runs stay interrupted"))
        )
    talk("drained")
