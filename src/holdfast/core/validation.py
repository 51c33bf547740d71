"""Checks of arguments: a value of the wrong type is refused where it is given, not where it is used."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.errors import DefinitionError

#: Labels of a new run, and the characters of their names and values.
MAX_LABELS, MAX_LABEL_NAME, MAX_LABEL_VALUE = 64, 200, 1_000
#: Labels that only holdfast sets.
_RESERVED_PREFIX = "holdfast."
#: Stores keep these times, and can add to them.
_FIRST_TIME, _LAST_TIME = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


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


def to_utc(name: str, value: Any) -> datetime:
    """Return a time in UTC. Refuse one without a zone, and one before 1970 or after the year 8999."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise DefinitionError(f"{name} is {value!r:.80}: give a datetime with a time zone")
    try:
        at = value.astimezone(UTC)
    except OverflowError:
        at = None
    if at is None or not _FIRST_TIME <= at < _LAST_TIME:
        raise DefinitionError(f"{name} is {value!r:.120}: give a time from 1970 to 8999")
    return at


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels of a new run that are too many or too long, and names that holdfast uses itself."""
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise DefinitionError(f"labels is {labels!r:.80}: give a mapping from text to text")
    if len(labels) > MAX_LABELS:
        raise DefinitionError(f"the run has {len(labels)} labels: give at most {MAX_LABELS}")
    for name, value in labels.items():
        if name.startswith(_RESERVED_PREFIX):
            raise DefinitionError(f"the label {name!r:.80} is set by holdfast: choose another name")
        if len(name) > MAX_LABEL_NAME or len(value) > MAX_LABEL_VALUE:
            raise DefinitionError(
                f"the label {name!r:.80} is too long: use {MAX_LABEL_NAME} characters for the name, "
                f"{MAX_LABEL_VALUE} for the value"
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
