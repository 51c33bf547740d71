"""The command that runs the store suite against a database: store-check."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.checkpoint.errors import StoreError
from holdfast.cli.options import JsonOption
from holdfast.cli.output import STYLES, CommandError, Output, UsageError, is_interactive, print_diagnostic, print_json
from holdfast.extras import require_extra

if TYPE_CHECKING:
    from holdfast.testing.store_check.suite_run import StoreCheck, SuiteOutcome


def store_check(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="postgresql://... or sqlite:PATH. Its own runs are not touched."),
    ],
    only: Annotated[
        str, typer.Option("--only", metavar="NAMES", help="Run the tests whose names match, as pytest -k does.")
    ] = "",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Time after which tests in progress fail.", min=1)
    ] = 1800,
    as_json: JsonOption = False,
) -> None:
    """Run the tests of the store contract against your own database.

    Uses a separate schema and drops it at the end (SQLite: a temporary folder beside the file). Reports missing
    features and failed tests. Exits with 0 if all tests passed. Needs the extra `testing`.
    """
    try:
        with require_extra("testing"):
            import hypothesis  # noqa: F401
            import pytest_asyncio  # noqa: F401

            from holdfast.testing.store_check.scratch_stores import make_scratch
            from holdfast.testing.store_check.suite_run import check_store
    except ModuleNotFoundError as exc:
        raise UsageError(str(exc)) from exc
    try:
        scratch = make_scratch(url)
    except StoreError as exc:
        raise UsageError(str(exc)) from exc
    print_diagnostic(f"checking in {scratch.describe()}")
    check = check_store(scratch, only=only, timeout=timedelta(seconds=timeout), report=_show_progress)
    if check.suite.problem:
        raise CommandError(check.suite.problem)
    if as_json:
        print_json(check)
    else:
        _print_check(check, Output())
    sys.exit(0 if check.verdict == "passed" else 1)


def _show_progress(suite: "SuiteOutcome") -> None:
    """Overwrite one line of the terminal. Elsewhere there is no progress to be seen."""
    if is_interactive(sys.stderr):
        ended = suite.passed + len(suite.failures)
        end = "\r" if ended < suite.collected else "\n"
        print(
            f"{ended} of {suite.collected} tests, {len(suite.failures)} failed ", end=end, file=sys.stderr, flush=True
        )


def _print_check(check: "StoreCheck", output: Output) -> None:
    for feature in check.features:
        level = "ok" if feature.present else "wrong" if feature.required else "warning"
        output.print_line(f"{level:<8} {feature.name}: {feature.detail}", STYLES[level])
    for test, error in check.suite.failures.items():
        output.print_line(f"{'failed':<8} {test}: {error}", STYLES["failed"])
    if check.verdict == "lacking":
        output.print_line("no test was run: the server lacks what the store needs")
        return
    suite = check.suite
    not_run = f", {suite.not_run} not run" if suite.not_run else ""
    output.print_line(f"{suite.passed} passed, {len(suite.failures)} failed{not_run} in {suite.seconds:.0f} s")
