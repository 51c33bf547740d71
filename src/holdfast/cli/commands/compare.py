"""holdfast compare"""

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.compare_session import (
    COMPARE_DIR,
    PREFERENCES_FILE,
    Comparison,
    TaskFiles,
    apply_response,
    run_fanout,
)
from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.options import JsonOption, QuietOption, StoreOption, read_prompt
from holdfast.cli.output import Output, print_diagnostic, print_json
from holdfast.cli.progress import LivePanels, ProgressListener
from holdfast.cli.stores import make_store, resolve_store_url
from holdfast.compare.preferences import compute_scores
from holdfast.compare.recipe import Recipe, Task, read_recipe
from holdfast.compare.report import COLUMNS, NUMERIC_COLUMNS, Report, format_rows


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
        sys.exit(_print_applied(apply_response(TaskFiles(name, task), apply_cell), apply_cell, as_json_text=as_json))
    wanted = _build_recipe(recipe, prompt, task, model or [], agent or [])
    place = Path(folder) if folder else Path() if "files" in wanted.tools else None
    make_store(store, create=True)
    comparison = Comparison(wanted, place, name, resolve_store_url(store), retry_failed=retry_failed)
    _check_interrupted(comparison, resume=resume, fresh=fresh)
    reports: list[Report] = []
    stopped = False
    for each in comparison.tasks:
        if not stopped:
            whole, stopped = asyncio.run(_run_task(comparison, each, resume=resume, quiet=quiet))
            reports.append(whole)
            if not as_json:
                _print_report(each, whole)
    if as_json:
        print_json(reports if recipe else reports[0])
    all_begun = len(reports) == len(comparison.tasks)
    if not all_begun or any(row.status == "interrupted" for whole in reports for row in whole.rows):
        print_diagnostic(f"go on with: {_format_resume_command()}")
    sys.exit(0 if all_begun and all(whole.ok for whole in reports) else 1)


def _build_recipe(path: str, prompt: str, task: str, models: list[str], agents: list[str]) -> Recipe:
    """What is written in the file, and what is typed beside it."""
    read = read_recipe(path) if path else Recipe()
    tasks = [each for each in read.tasks if not task or each.name == task]
    if task and not tasks:
        raise UsageError(f"the recipe has no task {task!r}: it has {', '.join(each.name for each in read.tasks)}")
    if prompt or not tasks:
        tasks = [Task(name="", prompt=read_prompt(prompt))]
    whole = msgspec.structs.replace(
        read, tasks=tuple(tasks), models=(*read.models, *models), agents=(*read.agents, *agents)
    )
    if not whole.models and not whole.agents:
        raise UsageError("who is compared? Name models with -m PROVIDER:NAME, or agents with --agent MODULE:ATTR")
    return whole


def _check_interrupted(comparison: Comparison, *, resume: bool, fresh: bool) -> None:
    """Nothing that has cost money is thrown away unasked."""
    left = [task.name for task in comparison.tasks if comparison.task_files(task).is_interrupted]
    if left and not resume and not fresh:
        raise CommandError("a comparison was interrupted: go on with --resume, or throw it away with --fresh")
    if not resume:
        for task in comparison.tasks:
            comparison.task_files(task).remove_results()


async def _run_task(comparison: Comparison, task: Task, *, resume: bool, quiet: bool) -> tuple[Report, bool]:
    """The report on one task, and whether it was stopped."""
    cells = comparison.build_fanout(task).adapter_ids
    stopped = False
    responses = comparison.load_finished(task, cells) if resume else None
    if responses is None:
        watcher = ProgressListener() if quiet else LivePanels(cells)
        fanout = comparison.build_fanout(task, watcher)
        with watcher:
            responses, stopped = await run_fanout(
                fanout,
                watcher,
                resume=resume,
                on_force_quit=lambda: print_diagnostic(f"stopped at once. Go on with: {_format_resume_command()}"),
            )
    return await comparison.evaluate(task, responses), stopped


def _format_resume_command() -> str:
    given = [each for each in sys.argv[1:] if each not in ("--resume", "--fresh")]
    return shlex.join(["holdfast", *given, "--resume"])


def _print_report(task: Task, report: Report) -> None:
    paper = Output(sys.stdout)
    if task.name:
        paper.print_line(f"task {task.name}", "bold")
    for row in report.rows:
        paper.print_line(f"== {row.model_id}", "bold")
        paper.print_line(row.text or row.error or row.status)
        if row.text and row.error:
            paper.print_line(row.error, "red")
        for path in row.writes:
            paper.print_line(f"   {path}", "dim")
        for check in row.checks:
            paper.print_line(
                f"   {'ok' if check.passed else 'no'}: {check.criterion}", "green" if check.passed else "red"
            )
    paper.print_line()
    paper.print_table(COLUMNS, format_rows(report), right=NUMERIC_COLUMNS)


def _print_applied(changed: list[str], cell: str, *, as_json_text: bool) -> int:
    if as_json_text:
        print_json({"applied": cell, "changed": changed})
    else:
        for path in changed:
            print(path)
        print_diagnostic(f"{len(changed)} files of {cell} applied")
    return 0


def _print_wins(*, as_json_text: bool) -> int:
    found = compute_scores(COMPARE_DIR / PREFERENCES_FILE)
    if as_json_text:
        print_json(found)
    else:
        rows = [[score.model_id, f"{score.wins}", f"{score.comparisons}"] for score in found]
        Output(sys.stdout).print_table(("model", "wins", "comparisons"), rows, right=("wins", "comparisons"))
    return 0
