"""The command compare."""

import asyncio
import logging
import shlex
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from holdfast.cli.compare.recipe import Recipe, Task, read_recipe
from holdfast.cli.compare.report import COLUMNS, NUMERIC_COLUMNS, Report, compute_scores, format_rows
from holdfast.cli.compare.session import (
    COMPARE_DIR,
    DEFAULT_NAME,
    PREFERENCES_FILE,
    ArgumentsFile,
    CompareArguments,
    Comparison,
    TaskFiles,
    apply_response,
    remove_runs,
)
from holdfast.cli.listeners import LivePanels, ProgressListener
from holdfast.cli.opening import make_store, resolve_store_url
from holdfast.cli.options import JsonOption, QuietOption, StoreOption, read_prompt
from holdfast.cli.output import CommandError, Output, UsageError, print_diagnostic, print_json
from holdfast.cli.printing import format_pick
from holdfast.cli.run_session import SignalHandler
from holdfast.db.urls import redact_url
from holdfast.fanout.workspace import is_risky


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted comparison: its prompt and models are known.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: resume failed models too.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard an interrupted comparison.")] = False,
    apply_cell: Annotated[
        str, typer.Option("--apply", metavar="MODEL", help="Apply the changes that this model proposed, and exit.")
    ] = "",
    wins: Annotated[bool, typer.Option("--wins", help="Show how often each model was applied, and exit.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name of the comparison.")] = DEFAULT_NAME,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print each step of each model instead of panels.")
    ] = False,
    quiet: QuietOption = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask several models the same prompt and compare the answers.

    Ctrl-C stops it after the current steps. holdfast compare --resume continues with the same prompt and models;
    finished models keep their answers. The writes of a model are proposals until you --apply them.
    """
    if wins:
        sys.exit(_print_wins(as_json_text=as_json))
    if apply_cell:
        sys.exit(_print_applied(apply_response(TaskFiles(name, task), apply_cell), apply_cell, as_json_text=as_json))
    given = CompareArguments(
        prompt=prompt,
        models=tuple(model or ()),
        agents=tuple(agent or ()),
        recipe=recipe,
        task=task,
        folder=folder,
        verbose=verbose,
        store=store,
    )
    arguments = _restore_arguments(name, given) if resume else given
    recipe_with_tasks = _build_recipe(arguments)
    comparison = _build_comparison(recipe_with_tasks, arguments, name, resume=resume, retry_failed=retry_failed)
    resume_command = _format_resume_command(name, store)
    _prepare_files(comparison, arguments, name, resume=resume, fresh=fresh, resume_command=resume_command)
    if not quiet:
        print_diagnostic(f"if this is interrupted, resume with: {resume_command}")
    reports: list[Report] = []
    for each in comparison.tasks:
        listener = _make_listener(comparison, each, quiet=quiet, verbose=arguments.verbose)
        report, stopped = asyncio.run(_run_task(comparison, each, listener, resume_command, resume=resume))
        reports.append(report)
        if report.is_finished and report.pick is None:
            print_diagnostic(f"to see the answers side by side, and pick one: holdfast ui, run {report.run_id}")
        if not as_json:
            _print_report(each, report)
        if stopped:
            break
    if as_json:
        print_json(reports if arguments.recipe else reports[0])
    all_started = len(reports) == len(comparison.tasks)
    if not all_started or any(row.status == "interrupted" for report in reports for row in report.rows):
        print_diagnostic(f"resume with: {resume_command}")
    sys.exit(0 if all_started and all(report.ok for report in reports) else 1)


def _restore_arguments(name: str, given: CompareArguments) -> CompareArguments:
    """Complete the arguments of a resume by those of the interrupted comparison."""
    stored = ArgumentsFile(name).load()
    if stored is None:
        if given.names_models_or_prompt:
            return given
        raise UsageError("there is no comparison to resume: start one with a prompt and models, or give its --name")
    store = given.store
    if not store and "***" not in stored.store:
        store = stored.store
    elif redact_url(resolve_store_url(store)) != stored.store:
        raise UsageError(f"the runs of the comparison are in {stored.store}: name that store with --store")
    restored = given if given.names_models_or_prompt else stored
    return msgspec.structs.replace(
        restored, store=store, verbose=given.verbose or stored.verbose, folder=given.folder or stored.folder
    )


def _build_recipe(arguments: CompareArguments) -> Recipe:
    """Combine the recipe file with the command's arguments."""
    read = read_recipe(arguments.recipe) if arguments.recipe else Recipe()
    task = arguments.task
    tasks = [each for each in read.tasks if not task or each.name == task]
    if task and not tasks:
        raise UsageError(f"the recipe has no task {task!r}: it has {', '.join(each.name for each in read.tasks)}")
    if arguments.prompt or not tasks:
        tasks = [Task(name="", prompt=read_prompt(arguments.prompt))]
    combined = msgspec.structs.replace(
        read,
        tasks=tuple(tasks),
        models=(*read.models, *arguments.models),
        agents=(*read.agents, *arguments.agents),
    )
    if not combined.models and not combined.agents:
        raise UsageError("no models: name them with -m PROVIDER:NAME, or agents with --agent MODULE:ATTR")
    return combined


def _build_comparison(
    recipe: Recipe, arguments: CompareArguments, name: str, *, resume: bool, retry_failed: bool
) -> Comparison:
    folder = arguments.folder
    workspace = Path(folder) if folder else Path() if "files" in recipe.tools else None
    make_store(arguments.store, create=True)
    url = resolve_store_url(arguments.store)
    stored = ArgumentsFile(name).load() if resume else None
    runs = stored.runs if stored is not None else {}
    comparison = Comparison(recipe, workspace, name, url, runs, retry_failed=retry_failed, verbose=arguments.verbose)
    for task in comparison.tasks:
        comparison.build_fanout(task)  # refuses an unknown model before any file is written
    return comparison


def _prepare_files(
    comparison: Comparison,
    arguments: CompareArguments,
    name: str,
    *,
    resume: bool,
    fresh: bool,
    resume_command: str,
) -> None:
    """Store the arguments of a new comparison.

    Raises:
        CommandError: another comparison was interrupted. It is not discarded without --fresh: its answers cost money.
    """
    file = ArgumentsFile(name)
    interrupted = file.find_interrupted()
    if interrupted and not resume and not fresh:
        raise CommandError(
            f"a comparison was interrupted: resume it with `{resume_command}`, or discard it with --fresh"
        )
    if resume and file.load() is not None:
        return
    if not resume:
        if interrupted:
            asyncio.run(remove_runs(interrupted, resolve_store_url(arguments.store)))
        for task in comparison.tasks:
            comparison.task_files(task).remove_results()
    prompt = comparison.tasks[0].prompt if arguments.prompt else ""  # the text that was read from stdin for "-"
    url = redact_url(resolve_store_url(arguments.store))
    file.save(msgspec.structs.replace(arguments, prompt=prompt, store=url, runs=comparison.runs))


def _make_listener(comparison: Comparison, task: Task, *, quiet: bool, verbose: bool) -> ProgressListener:
    if verbose:
        logging.getLogger("holdfast.fanout").setLevel(logging.INFO)
    if quiet or verbose:
        return ProgressListener()
    fanout = comparison.build_fanout(task)
    names = (agent.name for agent in fanout.agents[1:])
    return LivePanels(dict(zip(names, fanout.adapter_ids, strict=True)))


async def _run_task(
    comparison: Comparison, task: Task, listener: ProgressListener, resume_command: str, *, resume: bool
) -> tuple[Report, bool]:
    """Return the report on one task, and whether a signal stopped it."""
    fanout = comparison.build_fanout(task, listener)
    finished = comparison.load_finished(task, fanout.adapter_ids) if resume else None
    if finished is not None:
        return await comparison.evaluate(task, finished.responses, finished.run_id), False

    def report_force_quit() -> None:
        print_diagnostic(f"stopped immediately. Resume with: {resume_command}")

    handler = SignalHandler(fanout.stop, listener, report_force_quit)
    with listener:
        handler.install()
        try:
            responses = await fanout.run()
        finally:
            await handler.close()
    if not any(response.interrupted for response in responses):
        comparison.save_results(task, responses)
    return await comparison.evaluate(task, responses, fanout.run_id), handler.stopped


def _format_resume_command(name: str, store: str) -> str:
    named = ["--name", name] if name != DEFAULT_NAME else []
    stored = ["--store", redact_url(store)] if store else []
    return shlex.join(["holdfast", "compare", "--resume", *named, *stored])


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
            note = "  (programs may execute this file)" if is_risky(path[1:]) else ""
            output.print_line(f"   {path}{note}", "dim")
        for check in row.checks:
            output.print_line(
                f"   {'ok' if check.passed else 'no'}: {check.criterion}", "green" if check.passed else "red"
            )
    output.print_line()
    output.print_table(COLUMNS, format_rows(report), right=NUMERIC_COLUMNS)
    if report.pick is not None:
        output.print_line(f"picked {format_pick(report.pick)}", "bold")


def _print_applied(changed: list[str], cell: str, *, as_json_text: bool) -> int:
    risky = [path for path in changed if is_risky(path)]
    if risky:
        print_diagnostic(f"read these before you use them, programs may execute them: {', '.join(risky)}")
    if as_json_text:
        print_json({"applied": cell, "changed": changed, "risky": risky})
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
