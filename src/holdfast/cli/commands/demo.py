"""holdfast demo"""

import asyncio
import secrets
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.cli.commands.ui import make_schedule, serve_ui
from holdfast.cli.demo.demo import MAX_KILLS, Demo
from holdfast.cli.demo.fleet import add_jobs, build_fleet, keep_submitting
from holdfast.cli.output import Output


def demo(
    kills: Annotated[int, typer.Option("--kills", metavar="N", min=1, max=MAX_KILLS, help="Number of kills.")] = 5,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of the times of the kills. Default: random.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow the agent down.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the store and the ledger in this folder.")
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Show a small fleet in the browser instead.")] = False,
) -> None:
    """Watch an agent that is killed several times, resumes, and finishes.

    It needs no key and no server: the model follows a script and the store is a temporary SQLite file. SIGKILL comes
    at random times. At the end a ledger outside the store shows what was lost and what was repeated. Exits with 0 only
    if nothing was. With --ui it serves the web UI of a store with runs in every status until Ctrl-C.
    """
    seed = secrets.randbelow(10_000) if seed is None else seed
    output = Output()
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        if ui:
            asyncio.run(_serve_fleet(f"sqlite:{folder / 'runs.db'}"))
            return
        output.print_line(f"seed {seed}: {kills} kills")
        session = Demo(folder, seed, kills, 0.2 if fast else 1.0, output)
        result = asyncio.run(session.run())
        if keep is not None:
            output.print_line(f"inspect the run with: holdfast show demo --store {session.store_url}", "dim")
    output.print_line()
    output.print_line(str(result), "bold green" if result.passed else "bold red")
    sys.exit(0 if result.passed else 1)


async def _serve_fleet(store: str) -> None:
    app = build_fleet(store)
    schedule = make_schedule(app, store)

    async def work(app: App) -> None:
        assert schedule is not None, "a SQLite store has one"
        await add_jobs(schedule)
        await asyncio.gather(keep_submitting(app), schedule.loop())

    await serve_ui(app, 0, schedule, work)
