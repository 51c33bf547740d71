"""What the shell offers when a run's id is to be typed.

What users type, made into what the library takes.

Arguments and options that several commands share.
"""

import asyncio
import sys
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.errors import UsageError
from holdfast.cli.stores import open_store


def complete_run(ctx: Any, incomplete: str) -> list[str]:
    """The ids of stored runs that begin so. Nothing at all if the store cannot be read: a shell shows no errors."""

    async def find() -> list[str]:
        async with open_store(ctx.params.get("store") or "") as store:
            return [record.run_id async for record in store.list_runs() if record.run_id.startswith(incomplete)]

    try:
        return asyncio.run(find())
    except Exception:  # see above
        return []


def read_prompt(given: str) -> str:
    """The prompt itself; `-` stands for what is on stdin.

    Raises:
        UsageError: there is none.
    """
    text = sys.stdin.read().strip() if given == "-" else given
    if not text:
        raise UsageError('what is the run asked? Give it a "prompt", or - to read one from stdin')
    return text


def parse_labels(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` for each label.

    Raises:
        UsageError: one is not written so.
    """
    return dict(_split_pair(each, "--label NAME=VALUE") for each in given or [])


def parse_resolutions(given: list[str] | None) -> dict[str, Any]:
    """`CALL=RESULT` for each answer. A result that is JSON is taken as that, any other as text.

    Raises:
        UsageError: one is not written so.
    """
    return {
        call: _parse_value(text) for call, text in (_split_pair(each, "--resolve CALL=RESULT") for each in given or [])
    }


def _split_pair(given: str, form: str) -> tuple[str, str]:
    name, sign, value = given.partition("=")
    if not sign or not name:
        raise UsageError(f"{given!r} is not understood: write {form}")
    return name, value


def _parse_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:PATH or postgresql://...; else HOLDFAST_STORE, else sqlite:.holdfast/runs.db.",
    ),
]

CodeStoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="A store in place of the App's own; for an agent: else HOLDFAST_STORE, else sqlite:.holdfast/runs.db.",
    ),
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run, show_default=False)
]

CodeArgument = Annotated[
    str,
    typer.Argument(metavar="MODULE:ATTR", help="An App or an agent: where Python finds it.", show_default=False),
]

AppOption = Annotated[
    str,
    typer.Option("--app", metavar="MODULE:ATTR", help="The run's App or agent; needed unless its loop is native."),
]

AgentOption = Annotated[str, typer.Option("--agent", metavar="NAME", help="Which agent of the App, if it has several.")]

ModelOption = Annotated[
    str,
    typer.Option("--model", metavar="PROVIDER:NAME", help="In place of MODULE:AGENT: a bare model (pydantic-ai)."),
]

LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="A label of the run; may be repeated.")
]

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show how it goes on.")]
