"""The recorded calls of a workflow as a tree: what ran at once, equal calls, waits, and what was undone."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import msgspec

from holdfast.core.execution.native_calls import FIRST
from holdfast.core.workflow.steps.step_errors import StepError
from holdfast.core.workflow.steps.step_log import SAGA, WORKFLOW_SCOPE
from holdfast.runtime.reading.formatting import cut_text, format_arguments
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.ui.run_view.run_steps import CallView, StepView

#: This many calls of one tool are one row. Rows that an opened one shows.
_MIN_EQUAL, MAX_SHOWN = 4, 60
#: More branches than this are rows instead of cards.
_MAX_CARDS = 6
_UNDO = "undo "
#: Tools that only wait, with what they wait for.
_WAITS = {"sleep": "a time", "wait_for": "the signal", "ask_person": "an answer to"}
_OPEN_STATES = ("running", "needs approval", "needs result", "waiting", "in doubt", "open")

GroupKind = Literal["call", "many", "parallel", "undo"]


class RecordedCall(msgspec.Struct, kw_only=True):
    """One call of a workflow, and its outcome."""

    view: CallView
    #: The step that ended with its result; `None` if there is none.
    step: int | None = None
    #: The end of the last step before the call, which is the earliest that it can have begun, and its own end.
    after: datetime | None = None
    at: datetime | None = None
    #: The call that undoes this one; and the call that this one undoes, if the page has it, with the tool's name.
    undone_by: CallView | None = None
    undoes: CallView | None = None
    undoes_tool: str = ""
    #: It belongs to a branch that lost a `first`, or the code has not repeated it.
    is_abandoned: bool = False
    #: The run that it started.
    child: RunSummary | None = None

    @property
    def tool(self) -> str:
        return self.view.call.tool

    @property
    def state(self) -> str:
        """Its outcome, in one word or two."""
        if self.undone_by is not None:
            return "undone" if self.undone_by.state == "done" else "not undone"
        if self.view.state == "done":
            return "done"
        if self.is_abandoned:
            return "abandoned"
        if self.is_open:
            return self.view.state
        return "cancelled" if StepError.from_content(self.view.call.result).kind == "cancelled" else "failed"

    @property
    def brief(self) -> str:
        """Its arguments in one line: of an undo those of the call that it undoes."""
        arguments = self.view.call.arguments
        if self.undoes_tool and isinstance(arguments, dict):
            arguments = arguments.get("arguments")
        return "" if arguments is None else format_arguments(arguments)

    @property
    def is_open(self) -> bool:
        return self.view.state in _OPEN_STATES

    @property
    def is_wait(self) -> bool:
        return self.tool in _WAITS

    @property
    def waits_for(self) -> str:
        """What a call that only waits is about."""
        arguments = self.view.call.arguments if isinstance(self.view.call.arguments, dict) else {}
        name = arguments.get("name") or arguments.get("question") or ""
        return f"{_WAITS[self.tool]} “{cut_text(str(name), 120)}”" if name else _WAITS[self.tool]

    @property
    def start(self) -> datetime | None:
        """When it began, or the earliest that it can have begun."""
        return self.at - self.view.took if self.at is not None and self.view.took is not None else self.after

    @property
    def error(self) -> str:
        """The error in one line; empty without one."""
        if self.state not in ("failed", "cancelled"):
            return ""
        found = StepError.from_content(self.view.call.result)
        return cut_text(f"{found.type_name}: {found.message}", 300)


class CallGroup(msgspec.Struct, kw_only=True):
    """One node of the tree: a call, equal calls, calls that ran at once, or the calls of an undo."""

    kind: GroupKind
    calls: Sequence[RecordedCall]
    #: The nodes of calls that ran at once, or of an undo.
    parts: Sequence["CallGroup"] = ()
    #: Its place; `None` if the calls before it are not known.
    number: int | None = None
    #: How many calls ran at once, at most.
    width: int = 1
    #: The branch that won a `first`, or why an undo was made.
    note: str = ""
    #: The steps that ended with its calls, and with no call before.
    steps: Sequence[int] = ()

    @property
    def anchor(self) -> str:
        return f"{self.kind}-{self.calls[0].view.arguments.seq}"

    @property
    def target(self) -> str:
        """The id of its element."""
        return self.calls[0].view.anchor if self.kind == "call" else self.anchor

    @property
    def title(self) -> str:
        match self.kind:
            case "parallel":
                return f"{len(self.calls)} at once"
            case "undo":
                return "Undo"
            case "many":
                return f"{self.calls[0].tool} × {len(self.calls)}"
        return self.calls[0].tool

    @property
    def states(self) -> list[tuple[str, int]]:
        """How many calls have each state."""
        return Counter(call.state for call in self.calls).most_common()

    @property
    def look(self) -> str:
        """The class of its mark."""
        names = [name for name, _ in self.states]
        if self.kind == "undo":
            return "undo"
        if any(name in ("running", "waiting", "needs approval", "needs result") for name in names):
            return "wait" if all(call.is_wait for call in self.calls if call.is_open) else "running"
        if any(name in ("failed", "in doubt", "not undone") for name in names):
            return "bad"
        return "wait" if all(call.is_wait for call in self.calls) else "done"

    @property
    def brief(self) -> str:
        """The arguments of equal calls: those that differ as the first and the last."""
        first, last = self.calls[0].view.call.arguments, self.calls[-1].view.call.arguments
        if not isinstance(first, dict) or not isinstance(last, dict):
            return f"{format_arguments(first)} … {format_arguments(last)}"
        parts = [
            format_arguments({name: first[name]})
            + ("" if first[name] == last.get(name) else f" … {format_arguments(last.get(name))}")
            for name in first
        ]
        return cut_text(", ".join(parts), 200)

    @property
    def start(self) -> datetime | None:
        return min((call.start for call in self.calls if call.start is not None), default=None)

    @property
    def took(self) -> timedelta | None:
        """From the first beginning to the last end; `None` while a call is open, or if that is not known."""
        ends = [call.at for call in self.calls if call.at is not None]
        if self.start is None or not ends or any(call.is_open and not call.is_abandoned for call in self.calls):
            return None
        return max(ends) - self.start

    @property
    def is_cards(self) -> bool:
        return len(self.parts) <= _MAX_CARDS


class CallTree(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a window."""

    groups: Sequence[CallGroup]
    calls: Sequence[RecordedCall]

    @property
    def failed(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.state == "failed"]

    @property
    def undone(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.undone_by is not None]

    @property
    def undoable(self) -> list[RecordedCall]:
        return [call for call in self.calls if call.view.call.can_undo and call.state == "done"]

    def select(self, show: str) -> "CallTree":
        """Return the tree, or as a list: all calls, or the failed ones."""
        calls = self.failed if show == "failed" else self.calls
        if show not in ("failed", "list"):
            return self
        groups = [CallGroup(kind="call", calls=[call]) for call in calls]
        return CallTree(groups=groups, calls=self.calls)


def build_tree(steps: Sequence[StepView], children: Sequence[RunSummary]) -> CallTree:
    """Build the tree of the steps of a window.

    Calls that have begun before another one had its result ran at once.
    """
    calls = _list_calls(steps)
    _join_undo(calls)
    _join_children(calls, children)
    is_start = bool(steps) and steps[0].first_seq == 0
    groups = list(_fold_equal([_make_group(each) for each in _cluster(calls)]))
    known: set[int] = set()
    for number, group in enumerate(groups, 1):
        ended = {call.step for call in group.calls if call.step is not None} - known
        group.steps, group.number = sorted(ended), number if is_start else None
        known |= ended
    return CallTree(groups=groups, calls=calls)


def _list_calls(steps: Sequence[StepView]) -> list[RecordedCall]:
    """Return the calls in the order of their start, each with the times of the steps around it."""
    starts = [step.first_seq for step in steps]
    calls: list[RecordedCall] = []
    for view in sorted((view for step in steps for view in step.calls), key=_get_place):
        at = bisect_right(starts, view.arguments.seq) - 1
        begun = steps[at]
        after = steps[at - 1].at if at > 0 else None
        if begun.at is not None and begun.took is not None:
            after = begun.at - begun.took
        call = RecordedCall(view=view, after=after, is_abandoned=view.state == "abandoned")
        if view.result is not None:
            ended = steps[bisect_right(starts, view.result.seq) - 1]
            if ended.finished:
                call.step, call.at = ended.number, ended.at
        calls.append(call)
    return calls


def _get_place(view: CallView) -> tuple[int, int]:
    return view.arguments.seq, view.arguments.number


def _join_undo(calls: Sequence[RecordedCall]) -> None:
    """Connect each undo with its call, and mark the calls that a `first` has abandoned."""
    by_id = {call.view.call.call_id: call for call in calls}
    for call in calls:
        arguments, result = call.view.call.arguments, call.view.call.result
        if call.tool.startswith(_UNDO) and isinstance(arguments, dict):
            undone = by_id.get(str(arguments.get("call_id", "")))
            call.undoes_tool = call.tool.removeprefix(_UNDO)
            if undone is not None:
                call.undoes, undone.undone_by = undone.view, call.view
        elif _is_race(call):
            for call_id in result.get("abandoned", ()):
                if call_id in by_id:
                    by_id[call_id].is_abandoned = True


def _join_children(calls: Sequence[RecordedCall], children: Sequence[RunSummary]) -> None:
    """Give each call of an agent the run that it started: the last call the last one."""
    get_agent = attrgetter("agent")
    for agent, runs in groupby(sorted(children, key=attrgetter("agent", "created_at")), get_agent):
        callers = [call for call in calls if call.tool == agent]
        for call, run in zip(reversed(callers), reversed(list(runs)), strict=False):
            call.child = run


def _is_race(call: RecordedCall) -> bool:
    return call.tool == FIRST and isinstance(call.view.call.result, dict) and "winner" in call.view.call.result


def _is_scope(call: RecordedCall) -> bool:
    """Whether it records that the workflow or a saga has failed, before an undo."""
    result: Any = call.view.call.result
    return call.tool in (SAGA, WORKFLOW_SCOPE) and isinstance(result, dict) and "type_name" in result


def _is_cleanup(call: RecordedCall) -> bool:
    return bool(call.undoes_tool) or _is_scope(call)


def _cluster(calls: Sequence[RecordedCall]) -> Iterator[list[RecordedCall]]:
    """Yield the calls that ran at once. The calls of an undo are together, and with no others."""
    cluster: list[RecordedCall] = []
    end = -1
    race_ends = {call_id: race for race in calls if _is_race(race) for call_id in race.view.call.result["abandoned"]}
    for call in calls:
        joins = bool(cluster) and _is_cleanup(call) == _is_cleanup(cluster[0])
        if cluster and not (joins and (_is_cleanup(call) or call.view.arguments.seq < end)):
            yield cluster
            cluster, end = [], -1
        cluster.append(call)
        race = race_ends.get(call.view.call.call_id)
        last = race.view.result if race is not None and call.view.result is None else call.view.result
        end = max(end, 2**62 if last is None else last.seq)
    if cluster:
        yield cluster


def _make_group(calls: Sequence[RecordedCall]) -> CallGroup:
    if _is_cleanup(calls[0]):
        failed = next((call for call in calls if _is_scope(call)), None)
        why = StepError.from_content(failed.view.call.result) if failed is not None else None
        undone = [call for call in calls if not _is_scope(call)] or list(calls)
        parts = [CallGroup(kind="call", calls=[call]) for call in undone]
        note = "" if why is None else cut_text(f"after {why.type_name}: {why.message}", 200)
        return CallGroup(kind="undo", calls=undone, parts=parts, note=note)
    race = next((call for call in calls if _is_race(call)), None)
    shown = [call for call in calls if call is not race] or list(calls)
    note = "" if race is None else f"{cut_text(str(race.view.call.result['winner']), 60)} came first"
    if len(shown) == 1:
        return CallGroup(kind="call", calls=shown, note=note)
    width = _measure_width(shown)
    parts = list(_fold_equal([CallGroup(kind="call", calls=[call]) for call in sorted(shown, key=_get_tool)], width))
    if len(parts) == 1:
        return msgspec.structs.replace(parts[0], note=note)
    parts.sort(key=_get_first_seq)
    return CallGroup(kind="parallel", calls=shown, parts=parts, width=width, note=note)


def _get_tool(call: RecordedCall) -> str:
    return call.tool


def _get_first_seq(group: CallGroup) -> int:
    return group.calls[0].view.arguments.seq


def _measure_width(calls: Sequence[RecordedCall]) -> int:
    """Return how many calls ran at once, at most."""
    ends = [call.view.result.seq if call.view.result is not None else 2**62 for call in calls]
    starts = [call.view.arguments.seq for call in calls]
    return max(sum(first <= start < end for first, end in zip(starts, ends, strict=True)) for start in starts)


def _fold_equal(groups: Sequence[CallGroup], width: int = 1) -> Iterator[CallGroup]:
    """Make one node of consecutive calls of one tool, if they are many."""
    for (tool, is_plain), found in groupby(groups, _get_equality):
        same = list(found)
        calls = [call for group in same for call in group.calls]
        if len(calls) >= _MIN_EQUAL and is_plain and tool not in _WAITS:
            yield CallGroup(kind="many", calls=calls, width=max(width, *(group.width for group in same)))
        else:
            yield from same


def _get_equality(group: CallGroup) -> tuple[str, bool]:
    tool = group.calls[0].tool
    is_plain = group.kind != "undo" and all(call.tool == tool for call in group.calls)
    return tool, is_plain and not group.note
