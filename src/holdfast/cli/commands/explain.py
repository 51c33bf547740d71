"""holdfast explain"""

from difflib import get_close_matches
from typing import Annotated

import typer

from holdfast.cli.errors import CommandError
from holdfast.cli.explanations import load_explanations
from holdfast.cli.options import JsonOption
from holdfast.cli.output import print_json


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="The code at the end of the message, such as RunBusy.")],
    as_json: JsonOption = False,
) -> None:
    """Explain an error: its cause, and what to do."""
    explanations = load_explanations()
    names = {name.lower(): name for name in explanations}
    name = names.get(code.strip("[]").lower())
    if name is None:
        similar = get_close_matches(code, explanations, cutoff=0.5)
        hint = f"did you mean {', '.join(similar)}?" if similar else f"known are {', '.join(explanations)}"
        raise CommandError(f"there is no error {code!r}: {hint}")
    if as_json:
        print_json({"code": name, "explanation": explanations[name]})
    else:
        print(explanations[name])
