"""What users type, made into what the library takes."""

import sys
from typing import Any

import msgspec

from holdfast.cli.errors import WrongUsage


def prompt_of(given: str) -> str:
    """The prompt itself; `-` stands for what is on stdin.

    Raises:
        WrongUsage: there is none.
    """
    text = sys.stdin.read().strip() if given == "-" else given
    if not text:
        raise WrongUsage('what is the run asked? Give it a "prompt", or - to read one from stdin')
    return text


def labels_of(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` for each label.

    Raises:
        WrongUsage: one is not written so.
    """
    return dict(_pair(each, "--label NAME=VALUE") for each in given or [])


def answers_of(given: list[str] | None) -> dict[str, Any]:
    """`CALL=RESULT` for each answer. A result that is JSON is taken as that, any other as text.

    Raises:
        WrongUsage: one is not written so.
    """
    return {call: _value(text) for call, text in (_pair(each, "--answer CALL=RESULT") for each in given or [])}


def _pair(given: str, form: str) -> tuple[str, str]:
    name, sign, value = given.partition("=")
    if not sign or not name:
        raise WrongUsage(f"{given!r} is not understood: write {form}")
    return name, value


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
