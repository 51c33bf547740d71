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
)
from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.options import JsonOption, QuietOption, StoreOption, read_prompt
from holdfast.cli.output import Output, print_diagnostic, print_json
from holdfast.cli.progress import LivePanels, ProgressListener
from holdfast.cli.runner import SignalHandler
from holdfast.cli.stores import make_store, resolve_store_url
from holdfast.compare.preferences import compute_scores
from holdfast.compare.recipe import Recipe, Task, read_recipe
from holdfast.compare.report import COLUMNS, NUMERIC_COLUMNS, Report, format_rows


def compare(
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.", show_default=False),
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", metavar="PROVIDER:NAME", help="A model (pydantic-ai). Repeatable."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="MODULE:ATTR", help="Your own agent or model. Repeatable."),
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="FILE", help="A Markdown file with models, tools, tasks and criteria.")
    ] = "",
    task: Annotated[str, typer.Option("--task", metavar="NAME", help="Only this task of the recipe.")] = "",
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="The workspace: models may read it and propose changes.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted comparison.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: resume failed models too.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard an interrupted comparison.")] = False,
    apply_cell: Annotated[
        str, typer.Option("--apply", metavar="MODEL", help="Apply the changes that this model proposed, and exit.")
    ] = "",
    wins: Annotated[bool, typer.Option("--wins", help="Show how often each model was applied, and exit.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the comparison.")] = "last",
    quiet: QuietOption = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask several models the same prompt and compare the answers.

    Ctrl-C stops it after the current steps. The same command with --resume continues; it does not ask models again
    that have answered. The models' writes are proposals until you --apply one.
    """
    if wins:
        sys.exit(_print_wins(as_json_text=as_json))
    if apply_cell:
        sys.exit(_print_applied(apply_response(TaskFiles(name, task), apply_cell), apply_cell, as_json_text=as_json))
    built = _build_recipe(recipe, prompt, task, model or [], agent or [])
    workspace = Path(folder) if folder else Path() if "files" in built.tools else None
    make_store(store, create=True)
    comparison = Comparison(built, workspace, name, resolve_store_url(store), retry_failed=retry_failed)
    _check_interrupted(comparison, resume=resume, fresh=fresh)
    reports: list[Report] = []
    stopped = False
    for each in comparison.tasks:
        if not stopped:
            report, stopped = asyncio.run(_run_task(comparison, each, resume=resume, quiet=quiet))
            reports.append(report)
            if not as_json:
                _print_report(each, report)
    if as_json:
        print_json(reports if recipe else reports[0])
    all_started = len(reports) == len(comparison.tasks)
    if not all_started or any(row.status == "interrupted" for report in reports for row in report.rows):
        print_diagnostic(f"resume with: {_format_resume_command()}")
    sys.exit(0 if all_started and all(report.ok for report in reports) else 1)


def _build_recipe(path: str, prompt: str, task: str, models: list[str], agents: list[str]) -> Recipe:
    """Combine the recipe file with the command's arguments."""
    read = read_recipe(path) if path else Recipe()
    tasks = [each for each in read.tasks if not task or each.name == task]
    if task and not tasks:
        raise UsageError(f"the recipe has no task {task!r}: it has {', '.join(each.name for each in read.tasks)}")
    if prompt or not tasks:
        tasks = [Task(name="", prompt=read_prompt(prompt))]
    combined = msgspec.structs.replace(
        read, tasks=tuple(tasks), models=(*read.models, *models), agents=(*read.agents, *agents)
    )
    if not combined.models and not combined.agents:
        raise UsageError("no models: name them with -m PROVIDER:NAME, or agents with --agent MODULE:ATTR")
    return combined


def _check_interrupted(comparison: Comparison, *, resume: bool, fresh: bool) -> None:
    """Refuse to discard an interrupted comparison without --fresh: its answers cost money."""
    interrupted = any(comparison.task_files(task).is_interrupted for task in comparison.tasks)
    if interrupted and not resume and not fresh:
        raise CommandError("a comparison was interrupted: continue with --resume, or discard it with --fresh")
    if not resume:
        for task in comparison.tasks:
            comparison.task_files(task).remove_results()


async def _run_task(comparison: Comparison, task: Task, *, resume: bool, quiet: bool) -> tuple[Report, bool]:
    """Return the report on one task, and whether a signal stopped it."""
    cells = comparison.build_fanout(task).adapter_ids
    finished = comparison.load_finished(task, cells) if resume else None
    if finished is not None:
        return await comparison.evaluate(task, finished), False
    listener = ProgressListener() if quiet else LivePanels(cells)
    fanout = comparison.build_fanout(task, listener)
    handler = SignalHandler(fanout.stop, listener, _report_force_quit)
    with listener:
        handler.install()
        try:
            responses = await fanout.run(resume=resume)
        finally:
            await handler.close()
    return await comparison.evaluate(task, responses), handler.stopped


def _report_force_quit() -> None:
    print_diagnostic(f"stopped immediately. Resume with: {_format_resume_command()}")


def _format_resume_command() -> str:
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--resume", "--fresh")]
    return shlex.join(["holdfast", *arguments, "--resume"])


def _print_report(task: Task, report: Report) -> None:
    output = Output(sys.stdout)
    if task.name:
        output.print_line(f"task {task.name}", "bold")
    for row in report.rows:
        output.print_line(f"== {row.model_id}", "bold")
        output.print_line(row.text or row.error or row.status)
        if row.text and row.error:
            output.print_line(row.error, "red")
        for path in row.writes:
            output.print_line(f"   {path}", "dim")
        for check in row.checks:
            output.print_line(
                f"   {'ok' if check.passed else 'no'}: {check.criterion}", "green" if check.passed else "red"
            )
    output.print_line()
    output.print_table(COLUMNS, format_rows(report), right=NUMERIC_COLUMNS)


def _print_applied(changed: list[str], cell: str, *, as_json_text: bool) -> int:
    if as_json_text:
        print_json({"applied": cell, "changed": changed})
    else:
        for path in changed:
            print(path)
        print_diagnostic(f"{len(changed)} files of {cell} applied")
    return 0


def _print_wins(*, as_json_text: bool) -> int:
    scores = compute_scores(COMPARE_DIR / PREFERENCES_FILE)
    if as_json_text:
        print_json(scores)
    else:
        rows = [[score.model_id, f"{score.wins}", f"{score.comparisons}"] for score in scores]
        Output(sys.stdout).print_table(("model", "wins", "comparisons"), rows, right=("wins", "comparisons"))
    return 0
