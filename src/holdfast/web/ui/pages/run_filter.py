"""The filter of the runs list: its text form, such as `agent:refunds label.tenant:acme since:24h lamp`."""

import difflib
import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.core.validation import to_utc
from holdfast.runtime.reading.query_fields import QUERY_FIELDS
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.runtime.reading.run_views import RunQuery

#: `needs-you`: parked, or a call waits for a person.
NEEDS_YOU = "needs-you"
STATUS_CHOICES = (NEEDS_YOU, *(status.value for status in RunStatus if status is not RunStatus.REMOVED))

_TEXTS, _TIMES = ({field.name for field in QUERY_FIELDS if field.kind == kind} for kind in ("text", "time"))
_NAMES = (*sorted(_TEXTS), *sorted(_TIMES), "cost", "label")
#: The conditions, as a reader types them.
FILTER_NAMES = tuple("label.NAME:" if name == "label" else f"{name}:" for name in _NAMES)
#: Words that are at least this similar to a condition are taken for a misspelt one.
_SIMILAR = 0.6
#: The ways to sort the list, highest first.
SORTS = ("cost", "worked")
#: Characters of the text form.
_MAX_LENGTH = 2_000
_DURATION = re.compile(r"(\d{1,6}(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_COST = re.compile(r"([<>])=?\$?(\d+(?:\.\d+)?)")


class RunsFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs the list shows."""

    #: As the reader typed it.
    text: str = ""
    #: One of `STATUS_CHOICES`; empty: all.
    status: str = ""
    #: One of `SORTS`; empty: newest first.
    sort: str = ""
    #: The part that the store applies, without the status.
    query: RunQuery = {}
    min_cost: float | None = None
    max_cost: float | None = None
    #: Texts that the beginning of the prompt, or the id, has to contain.
    words: tuple[str, ...] = ()

    def to_query(self, *, with_status: bool = True) -> RunQuery:
        """Return the part that the store applies."""
        if not with_status or not self.status:
            return self.query
        return {**self.query, "status": ["waiting", "parked"] if self.status == NEEDS_YOU else [self.status]}

    def matches(self, run: RunSummary, *, needs_person: bool) -> bool:
        """Whether a run that the store found fits the rest."""
        if self.status == NEEDS_YOU and not needs_person:
            return False
        cost = run.usage.cost_usd
        if (self.min_cost is not None and cost < self.min_cost) or (self.max_cost is not None and cost > self.max_cost):
            return False
        searched = f"{run.run_id} {run.prompt}".lower()
        return all(word in searched for word in self.words)

    def to_url(self, **changes: str | None) -> str:
        """Return the query string of the page with this filter, with some parts replaced."""
        parts = {"q": self.text, "status": self.status, "sort": self.sort} | changes
        return "?" + urlencode({name: value for name, value in parts.items() if value})


def parse_filter(text: str, status: str, now: datetime, sort: str = "") -> RunsFilter:
    """Parse the filter.

    Raises:
        DefinitionError: a part of it is not valid, or it is too long.
    """
    if len(text) > _MAX_LENGTH:
        raise DefinitionError(f"the filter has {len(text)} characters: give at most {_MAX_LENGTH}")
    if status and status not in STATUS_CHOICES:
        raise DefinitionError(f"status is {status!r:.40}: use {', '.join(STATUS_CHOICES)}")
    if sort and sort not in SORTS:
        raise DefinitionError(f"sort is {sort!r:.40}: use {', '.join(SORTS)}")
    query: dict[str, Any] = {}
    costs: dict[str, float] = {}
    words: list[str] = []
    for part in _split(text):
        name, _, value = part.partition(":")
        if value and name in _TEXTS:
            query[name] = value
        elif value and name in _TIMES:
            query[name] = _parse_time(name, value, now)
        elif value and name == "cost":
            costs |= _parse_cost(value)
        elif value and name.startswith("label."):
            query.setdefault("labels", {})[name.removeprefix("label.")] = value
        else:
            _check_name(name, value)
            words.append(part.lower())
    return RunsFilter(text=text, status=status, sort=sort, query=cast("RunQuery", query), words=tuple(words), **costs)


def _check_name(name: str, value: str) -> None:
    """Refuse a misspelt condition. Other words with a colon are looked for: ids and prompts may have one."""
    near = difflib.get_close_matches(name.lower(), _NAMES, 1, _SIMILAR) if value else []
    if near:
        raise DefinitionError(f"{name:.40} is not a filter: did you mean {near[0]}:{value:.40}?")


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation mark that is not closed
        return text.split()


def _parse_time(name: str, value: str, now: datetime) -> datetime:
    try:
        if found := _DURATION.fullmatch(value):
            return now - timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
        at = datetime.fromisoformat(value)
        return to_utc(name, at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError, DefinitionError):
        form = "a duration such as 30m, 24h or 7d, or a time such as 2026-05-01"
        raise DefinitionError(f"{name}:{value:.40} is not valid: give {form}") from None


def _parse_cost(value: str) -> dict[str, float]:
    found = _COST.fullmatch(value)
    if found is None:
        raise DefinitionError(f"cost:{value:.40} is not valid: give a bound such as cost:>0.5")
    return {"min_cost" if found[1] == ">" else "max_cost": float(found[2])}
