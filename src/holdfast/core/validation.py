"""Checks of arguments: a value of the wrong type is refused where it is given, not where it is used."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from holdfast.core.errors import DefinitionError


def check_type(name: str, value: Any, kind: type, advice: str = "") -> None:
    """Refuse a value that is not a `kind`. Raises `DefinitionError`, like all checks of this module."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise DefinitionError(f"{name} is {value!r:.80}: give {advice or _with_article(kind.__name__)}")


def check_protocol(name: str, value: Any, protocol: type) -> None:
    """Refuse a value that lacks methods of a runtime-checkable protocol, and a class in place of an object."""
    if isinstance(value, type) or not isinstance(value, protocol):
        methods = ", ".join(method for method in vars(protocol) if not method.startswith("_"))
        kind = _with_article(protocol.__name__)
        raise DefinitionError(f"{name} is {value!r:.80}: give {kind}, an object with the methods {methods}")


def check_text(name: str, value: Any) -> None:
    """Refuse a value that is not text."""
    check_type(name, value, str, "text")


def check_flag(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False."""
    check_type(name, value, bool, "True or False")


def check_count(name: str, value: Any) -> None:
    """Refuse a value that is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DefinitionError(f"{name} is {value!r:.80}: give a whole number of at least 1")


def check_duration(name: str, value: Any, *, positive: bool = False) -> None:
    """Refuse a value that is not a timedelta of zero or more, or of more than zero."""
    if not isinstance(value, timedelta) or value < timedelta(0) or (positive and not value):
        raise DefinitionError(
            f"{name} is {value!r:.80}: give a timedelta of {'more than zero' if positive else 'zero or more'}"
        )


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a value that is not one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise DefinitionError(f"{name} is {value!r:.80}: give one of {', '.join(choices)}")


def check_callable(name: str, value: Any) -> None:
    """Refuse a value that cannot be called."""
    if not callable(value):
        raise DefinitionError(f"{name} is {value!r:.80}: give a function")


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
