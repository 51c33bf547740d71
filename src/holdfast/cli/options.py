"""Arguments and options that several commands share: their declarations, parsers and completion."""

import asyncio
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.opening import open_store
from holdfast.cli.output import UsageError
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

CallArgument = Annotated[
    str, typer.Argument(metavar="CALL", help="The call's id. `pending` and `show` list them.", show_default=False)
]

ByOption = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decided, for the record.")]

MailIdOption = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="An id of your own. Sending it again changes nothing.")
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

LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="A label of the run. Repeatable.")
]

InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=JSON", help="An input of the run: JSON, else text. Repeatable."),
]

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
