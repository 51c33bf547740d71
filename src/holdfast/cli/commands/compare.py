"""holdfast compare"""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.comparing import FOLDER, PREFERENCES, Comparison, Kept, apply, watched
from holdfast.cli.errors import CommandError, WrongUsage
from holdfast.cli.options import JsonOption, QuietOption, StoreOption
from holdfast.cli.output import Paper, print_json, talk
from holdfast.cli.panels import Panels
from holdfast.cli.progress import Watcher
from holdfast.cli.stores import store_for, url_of
from holdfast.cli.words import prompt_of
from holdfast.fanout.preferences import scores
from holdfast.fanout.recipe import Recipe, Task, read_recipe
from holdfast.fanout.report import COLUMNS, NUMBERS, Report, table


def compare(
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="What is asked; - reads it from stdin.", show_default=False),
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="PROVIDER:NAME", help="A model (pydantic-ai); may be repeated."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="MODULE:ATTR", help="An agent or model of your own; may be repeated."),
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="FILE", help="A Markdown file: models, tools, tasks, criteria.")
    ] = "",
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="Only this task of the recipe.")] = "",
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="Models may read it and propose changes to it.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="With --resume: failed models, too.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away what was interrupted.")] = False,
    apply_cell: Annotated[
        str, typer.Option("--apply", metavar="MODEL", help="Make the changes that this model proposed, and stop.")
    ] = "",
    wins: Annotated[bool, typer.Option("--wins", help="Show how often each model was applied, and stop.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Tells comparisons apart.")] = "last",
    quiet: QuietOption = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask several models the same, side by side.

    Ctrl-C stops it after the turns under way; the same command with --resume goes on: models that have answered are
    not asked again. What models write is a proposal until you --apply one.
    """
    if wins:
        sys.exit(_print_wins(as_json_text=as_json))
    if apply_cell:
        sys.exit(_print_applied(apply(Kept(name, task), apply_cell), apply_cell, as_json_text=as_json))
    wanted = _recipe(recipe, prompt, task, model or [], agent or [])
    place = Path(folder) if folder else Path() if "files" in wanted.tools else None
    store_for(store, create=True)
    comparison = Comparison(wanted, place, name, url_of(store), retry_failed=retry_failed)
    _check_left(comparison, resume=resume, fresh=fresh)
    reports: list[Report] = []
    stopped = False
    for each in comparison.tasks:
        if not stopped:
            whole, stopped = asyncio.run(_one(comparison, each, resume=resume, quiet=quiet))
            reports.append(whole)
            if not as_json:
                _print(each, whole)
    if as_json:
        print_json(reports if recipe else reports[0])
    all_begun = len(reports) == len(comparison.tasks)
    if not all_begun or any(row.standing == "interrupted" for whole in reports for row in whole.rows):
        talk(f"go on with: {_again()}")
    sys.exit(0 if all_begun and all(whole.ok for whole in reports) else 1)


def _recipe(path: str, prompt: str, task: str, models: list[str], agents: list[str]) -> Recipe:
    """What is written in the file, and what is typed beside it."""
    read = read_recipe(path) if path else Recipe()
    tasks = [each for each in read.tasks if not task or each.name == task]
    if task and not tasks:
        raise WrongUsage(f"the recipe has no task {task!r}: it has {', '.join(each.name for each in read.tasks)}")
    if prompt or not tasks:
        tasks = [Task(name="", prompt=prompt_of(prompt))]
    whole = msgspec.structs.replace(
        read, tasks=tuple(tasks), models=(*read.models, *models), agents=(*read.agents, *agents)
    )
    if not whole.models and not whole.agents:
        raise WrongUsage("who is compared? Name models with -m PROVIDER:NAME, or agents with --agent MODULE:ATTR")
    return whole


def _check_left(comparison: Comparison, *, resume: bool, fresh: bool) -> None:
    """Nothing that has cost money is thrown away unasked."""
    left = [task.name for task in comparison.tasks if comparison.kept(task).is_interrupted]
    if left and not resume and not fresh:
        raise CommandError("a comparison was interrupted: go on with --resume, or throw it away with --fresh")
    if not resume:
        for task in comparison.tasks:
            comparison.kept(task).forget_results()


async def _one(comparison: Comparison, task: Task, *, resume: bool, quiet: bool) -> tuple[Report, bool]:
    """The report on one task, and whether it was stopped."""
    cells = comparison.fanout(task).adapter_ids
    stopped = False
    responses = comparison.finished(task, cells) if resume else None
    if responses is None:
        watcher = Watcher() if quiet else Panels(cells)
        fanout = comparison.fanout(task, watcher)
        with watcher:
            responses, stopped = await watched(
                fanout, watcher, resume=resume, stopped_at_once=lambda: talk(f"stopped at once. Go on with: {_again()}")
            )
    return await comparison.judged(task, responses), stopped


def _again() -> str:
    given = [each for each in sys.argv[1:] if each not in ("--resume", "--fresh")]
    return shlex.join(["holdfast", *given, "--resume"])


def _print(task: Task, whole: Report) -> None:
    paper = Paper(sys.stdout)
    if task.name:
        paper.line(f"task {task.name}", "bold")
    for row in whole.rows:
        paper.line(f"== {row.model_id}", "bold")
        paper.line(row.text or row.error or row.standing)
        if row.text and row.error:
            paper.line(row.error, "red")
        for path in row.writes:
            paper.line(f"   {path}", "dim")
        for check in row.checks:
            paper.line(f"   {'ok' if check.passed else 'no'}: {check.criterion}", "green" if check.passed else "red")
    paper.line()
    paper.table(COLUMNS, table(whole), right=NUMBERS)


def _print_applied(changed: list[str], cell: str, *, as_json_text: bool) -> int:
    if as_json_text:
        print_json({"applied": cell, "changed": changed})
    else:
        for path in changed:
            print(path)
        talk(f"{len(changed)} files of {cell} applied")
    return 0


def _print_wins(*, as_json_text: bool) -> int:
    found = scores(FOLDER / PREFERENCES)
    if as_json_text:
        print_json(found)
    else:
        rows = [[score.model_id, f"{score.wins}", f"{score.comparisons}"] for score in found]
        Paper(sys.stdout).table(("model", "wins", "comparisons"), rows, right=("wins", "comparisons"))
    return 0
