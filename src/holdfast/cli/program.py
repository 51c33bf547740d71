"""The `holdfast` program with all its commands."""

import logging
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from holdfast.cli.commands import map_results
from holdfast.cli.commands.admin import LIMIT_COMMANDS, doctor, explain, grants, migrate
from holdfast.cli.commands.checking import store_check
from holdfast.cli.commands.control import cancel, fork, recover, resume, rm, unpark
from holdfast.cli.commands.decisions import answer, approve, deny, pending, send, signal
from holdfast.cli.commands.ls_export import export, ls
from holdfast.cli.commands.running import chat, run, submit
from holdfast.cli.commands.scheduling import SCHEDULE_COMMANDS
from holdfast.cli.commands.serving import mcp, serve, ui, worker
from holdfast.cli.commands.show_tail import show, tail
from holdfast.cli.commands.top import top
from holdfast.cli.compare.command import compare
from holdfast.cli.demo.killing import demo
from holdfast.cli.output import DEBUG_VARIABLE, is_debug_enabled, sanitize
from holdfast.core.log import LIFECYCLE_LOG

#: The sections of `holdfast --help`.
SECTIONS: dict[str, tuple[Callable[..., None], ...]] = {
    "Run agents": (demo, run, chat, resume, recover, worker, serve, submit, map_results.map, compare),
    "Act on runs": (send, signal, pending, approve, deny, answer, cancel, unpark, fork, rm),
    "Look at runs": (ls, show, tail, top, map_results.results, export, ui, mcp),
    "Operate": (doctor, migrate, grants, store_check, explain),
}

COMMANDS: tuple[Callable[..., None], ...] = tuple(command for section in SECTIONS.values() for command in section)


def name_command(command: Callable[..., None]) -> str:
    """Return the name by which a user calls the command."""
    return command.__name__.replace("_", "-")


class _Program(typer.core.TyperGroup):
    """Lists the commands in sections, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = {name: (name, self.commands[name].get_short_help_str(limit=1_000)) for name in self.list_commands(ctx)}
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name_command(command)) for command in commands], col_max=12)
        with formatter.section("Groups of commands"):
            formatter.write_dl(list(rows.values()), col_max=12)


class TerminalFormatter(logging.Formatter):
    """Formats a log record as one line, or with its traceback if `--debug` is set. It may quote a model or a tool."""

    def format(self, record: logging.LogRecord) -> str:
        if is_debug_enabled():
            return sanitize(super().format(record))
        record.exc_info = record.exc_text = None
        return " ".join(sanitize(super().format(record)).split())


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


def _configure(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. Also: HOLDFAST_DEBUG=1.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable agent runs: start, inspect and resume them."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    handler = logging.StreamHandler()
    handler.setFormatter(TerminalFormatter("holdfast: %(message)s"))
    log = logging.getLogger("holdfast")
    log.addHandler(handler)
    log.propagate = False
    LIFECYCLE_LOG.setLevel(logging.CRITICAL)  # a command shows in its own way how its runs end


def build_program() -> Any:
    """Build the click command of the program."""
    # Without markup typer prints plain help and does not import rich.
    app = typer.Typer(
        cls=_Program,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_configure)
    for command in COMMANDS:
        app.command()(command)
    limits = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="How many runs execute at the same time.")
    for name, command in LIMIT_COMMANDS.items():
        limits.command(name)(command)
    app.add_typer(limits, name="limits")
    schedule = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Jobs that submit runs on a cron schedule."
    )
    for name, command in SCHEDULE_COMMANDS.items():
        schedule.command(name)(command)
    app.add_typer(schedule, name="schedule")
    return typer.main.get_command(app)
