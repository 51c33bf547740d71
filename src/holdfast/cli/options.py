"""Arguments and options that several commands share: their declarations, parsers and completion."""

import asyncio
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from holdfast.checkpoint.record import RunStatus
from holdfast.cli.opening import open_store
from holdfast.cli.output import UsageError
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.query_fields import QUERY_FIELDS, QueryField
from holdfast.runtime.reading.run_views import list_records

#: Runs that shell completion looks at.
_MAX_COMPLETIONS = 1000

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def complete_run(ctx: Any, incomplete: str) -> list[str]:
    """Return the ids of the newest runs with this prefix; an empty list if the store cannot be read."""

    async def find() -> list[str]:
        async with open_store(ctx.params.get("store") or "") as store:
            newest = (await list_records(store, limit=_MAX_COMPLETIONS)).records
            return sorted(record.run_id for record in newest if record.run_id.startswith(incomplete))

    try:
        return asyncio.run(find())
    except Exception:  # shell completion has no place for an error
        return []


def read_prompt(given: str) -> str:
    """Return the prompt, read from stdin for `-`.

    Raises:
        UsageError: the prompt is empty.
    """
    text = sys.stdin.read().strip() if given == "-" else given
    if not text:
        raise UsageError('the prompt is missing: give a "prompt", or - to read it from stdin')
    return text


def parse_labels(given: list[str] | None) -> dict[str, str]:
    """Parse `NAME=VALUE` labels.

    Raises:
        UsageError: a label has another form.
    """
    return dict(_split_pair(each, "--label NAME=VALUE") for each in given or [])


def parse_inputs(given: list[str] | None) -> dict[str, Any]:
    """Parse `NAME=JSON` inputs. A value that is not JSON is taken as text.

    Raises:
        UsageError: an input has another form, or is named `prompt`.
    """
    inputs = {
        name: parse_value(text) for name, text in (_split_pair(each, "--input NAME=JSON") for each in given or [])
    }
    if "prompt" in inputs:
        raise UsageError("an input cannot be named prompt: give the prompt as an argument")
    return inputs


def parse_resolutions(given: list[str] | None) -> dict[str, Any]:
    """Parse `CALL=RESULT` resolutions. A result that is not JSON is taken as text.

    Raises:
        UsageError: a resolution has another form.
    """
    return {
        call: parse_value(text) for call, text in (_split_pair(each, "--resolve CALL=RESULT") for each in given or [])
    }


def parse_results(given: list[str] | None) -> dict[str, Any]:
    """Parse `CALL=RESULT` results, as `parse_resolutions` does."""
    return {
        call: parse_value(text) for call, text in (_split_pair(each, "--result CALL=RESULT") for each in given or [])
    }


def parse_arguments(given: list[str] | None) -> dict[str, Any]:
    """Parse `ARG=JSON` arguments of a call. A value that is not JSON is taken as text.

    Raises:
        UsageError: an argument has another form.
    """
    return {name: parse_value(text) for name, text in (_split_pair(each, "--set ARG=JSON") for each in given or [])}


def parse_past_time(given: str, option: str, now: datetime) -> datetime:
    """Parse an ISO time, local unless it has a zone, or a duration before `now`, such as `2h` or `3d`.

    Raises:
        UsageError: it has another form.
    """
    return _parse_time(given, option, now, sign=-1)


def parse_future_time(given: str, option: str, now: datetime) -> datetime:
    """Parse as `parse_past_time`, but a duration is one after `now`."""
    return _parse_time(given, option, now, sign=1)


def _parse_time(given: str, option: str, now: datetime, *, sign: int) -> datetime:
    try:
        if found := _DURATION.fullmatch(given.strip()):
            return now + sign * timedelta(**{_UNITS[found[2]]: float(found[1])})
        return datetime.fromisoformat(given).astimezone(UTC)
    except (ValueError, OverflowError):
        form = "a duration such as 30m, 2h or 3d, or an ISO time such as 2026-05-01T09:00"
        raise UsageError(f"{option} {given!r} is not valid: give {form}") from None


def _split_pair(given: str, form: str) -> tuple[str, str]:
    name, sign, value = given.partition("=")
    if not sign or not name:
        raise UsageError(f"{given!r} is not valid: write {form}")
    return name, value


def parse_value(text: str) -> Any:
    """Parse JSON. Other text is taken as it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:PATH or postgresql://...; default HOLDFAST_STORE, else sqlite:.holdfast/runs.db.",
    ),
]

CodeStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="Replaces the App's store; default for an agent: HOLDFAST_STORE, else sqlite:.holdfast/runs.db.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run, show_default=False)
]

OptionalRunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's id. Or give a filter.", autocompletion=complete_run, show_default=False
    ),
]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="With a filter: do not ask for confirmation.")]

CallArgument = Annotated[
    str, typer.Argument(metavar="CALL", help="The call's id. `pending` and `show` list them.", show_default=False)
]

ByOption = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decided, for the record.")]

DigestOption = Annotated[
    str | None,
    typer.Option(
        "--digest", metavar="HEX", help="Digest of the call that you saw (pending --json). Refuses another call."
    ),
]

MailIdOption = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Your own id. Sending it again changes nothing.")
]

CodeArgument = Annotated[
    str,
    typer.Argument(metavar="MODULE:ATTR", help="An App or an agent, by its import path.", show_default=False),
]

AppOption = Annotated[
    str,
    typer.Option(
        "--app", metavar="MODULE:ATTR", help="The run's App or agent; required unless it uses the native loop."
    ),
]

AgentOption = Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent's name, if the App has several.")]

ModelOption = Annotated[
    str,
    typer.Option("--model", metavar="PROVIDER:NAME", help="A model (pydantic-ai) instead of MODULE:AGENT."),
]

InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=JSON", help="An input of the run, as JSON or text. Repeatable."),
]

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


class _SharedOption(NamedTuple):
    """An option of several commands, and how its text becomes a value."""

    annotation: Any
    default: Any
    parse: Callable[[Any], Any]


#: The options of commands that start runs, by the names in `RunOptions`.
RUN_OPTIONS: dict[str, _SharedOption] = {
    "caller_id": _SharedOption(
        Annotated[str, typer.Option("--caller", metavar="ID", help="The caller's id. Workers serve callers in turn.")],
        "",
        str,
    ),
    "labels": _SharedOption(
        Annotated[
            list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="A label of the run. Repeatable.")
        ],
        None,
        parse_labels,
    ),
    "priority": _SharedOption(
        Annotated[int, typer.Option("--priority", metavar="N", help="From -10 to 10. Workers take higher ones first.")],
        0,
        int,
    ),
    "concurrency_key": _SharedOption(
        Annotated[
            str, typer.Option("--key", metavar="KEY", help="Runs with the same key share the limit of that key.")
        ],
        "",
        str,
    ),
    "channel_id": _SharedOption(
        Annotated[str, typer.Option("--channel", metavar="ID", help="The host's channel that the run belongs to.")],
        "",
        str,
    ),
    "guild_id": _SharedOption(
        Annotated[str, typer.Option("--guild", metavar="ID", help="The host's guild that the run belongs to.")],
        "",
        str,
    ),
}

STATUSES = [status.value for status in RunStatus if status is not RunStatus.REMOVED]
_METAVARS = {"agent": "NAME", "caller": "ID", "parent": "RUN", "forked_from": "RUN"}
_AGO = "30m, 2h, 3d ago, or an ISO time."


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in STATUSES if status.startswith(incomplete)]


def _make_query_option(field: QueryField) -> _SharedOption:
    flag, sentence = f"--{field.parameter.replace('_', '-')}", field.help.removesuffix(".")
    match field.kind:
        case "time":
            option = typer.Option(flag, metavar="TIME", help=f"{sentence}: {_AGO}")
            return _SharedOption(Annotated[str, option], "", functools.partial(_parse_past, flag))
        case "pairs":
            option = typer.Option(flag, metavar="NAME=VALUE", help=f"{field.help} Repeatable.")
            return _SharedOption(Annotated[list[str] | None, option], None, parse_labels)
        case "texts":
            help_text = f"{sentence} ({', '.join(STATUSES)}). Repeatable."
            option = typer.Option(flag, metavar="STATUS", help=help_text, autocompletion=_complete_status)
            return _SharedOption(Annotated[list[str] | None, option], None, _check_statuses)
        case "text":
            option = typer.Option(flag, metavar=_METAVARS.get(field.name, "TEXT"), help=field.help)
            return _SharedOption(Annotated[str, option], "", str)


def _parse_past(option: str, given: str) -> datetime:
    return parse_past_time(given, option, utc_now())


def _check_statuses(given: list[str]) -> list[str]:
    if unknown := sorted(set(given) - set(STATUSES)):
        raise UsageError(f"unknown status {', '.join(unknown)}: --status takes {', '.join(STATUSES)}")
    return given


#: The options of commands that list runs, by the names in `RunQuery`.
QUERY_OPTIONS = {field.name: _make_query_option(field) for field in QUERY_FIELDS}


def take_options(name: str, table: Mapping[str, _SharedOption]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of commands: in place of the parameter `name` the user gives the options of `table`.

    The command gets a dictionary of the options that were given.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {key: given.pop(f"{name}_{key}") for key in table}
            parsed = {key: table[key].parse(value) for key, value in chosen.items() if value}
            command(**given, **{name: parsed})

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command).parameters.values():
            added = [
                own.replace(name=f"{name}_{key}", annotation=each.annotation, default=each.default)
                for key, each in table.items()
            ]
            parameters += added if own.name == name else [own]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate
