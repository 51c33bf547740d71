"""holdfast demo"""

import asyncio
import secrets
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.demo.demo import MAX_KILLS, Demo
from holdfast.cli.output import Output


def demo(
    kills: Annotated[
        int, typer.Option("--kills", metavar="N", min=1, max=MAX_KILLS, help="How often to kill the agent.")
    ] = 5,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Decides when the kills come. Any, without one.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow the agent down for watching.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep the store and the ledger in this folder.")
    ] = None,
) -> None:
    """See an agent killed again and again, going on, and finishing.

    No key, no server: its model follows a script, its store is a temporary SQLite file, and it is killed by SIGKILL at
    random moments. In the end it is counted from a ledger outside the store what was lost and what was done twice;
    exits with 0 only if that is nothing.
    """
    chosen = secrets.randbelow(10_000) if seed is None else seed
    paper = Output()
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        paper.print_line(f"seed {chosen}: {kills} kills")
        play = Demo(folder, chosen, kills, 0.2 if fast else 1.0, paper)
        verdict = asyncio.run(play.run())
        if keep is not None:
            paper.print_line(f"look at it with: holdfast show demo --store {play.store_url}", "dim")
    paper.print_line()
    paper.print_line(str(verdict), "bold green" if verdict.passed else "bold red")
    sys.exit(0 if verdict.passed else 1)
