"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from holdfast.cli.completion import complete_run

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
