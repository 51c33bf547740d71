"""Checks of transactions: a row in the user's table is there if, and only if, the result of its call is recorded."""

from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.app import App
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import StoredRun
from holdfast.core.run.info import WORKFLOW_LOOP_NAME
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.core.workflow.restart import Life
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name
from holdfast.testing.simulation.scenarios.script_tools import BOOK
from holdfast.testing.simulation.world.client_jobs import get_place

if TYPE_CHECKING:
    from holdfast.testing.simulation.world.world import World

_ROWS = "SELECT run_id, place, number FROM bookings"


class BookingChecks:
    """Compares three accounts: the rows, the records in the store, and the results that models and workflows saw."""

    def __init__(self, world: "World", statuses: dict[str, str]) -> None:
        self._ledger, self._statuses = world.ledger, statuses
        self._planned = {run.run_id: run for run in world.plan.runs}
        #: By run and place of a call: the results that its rows stand for.
        self._rows: dict[tuple[str, str], list[str]] = defaultdict(list)
        for run_id, place, number in world.backend.read_rows(_ROWS):
            self._rows[run_id, place].append(f"{place} booked, call {number}")

    async def check(self, app: App) -> None:
        for (run_id, place), found in self._rows.items():
            if len(found) > 1:
                self._report(run_id, place, f"has {len(found)} rows: {found}")
        for (run_id, place), seen in self._ledger.final.items():
            if " booked, call " in str(seen) and self._find_rows(run_id, place) != [seen]:
                self._report(run_id, place, f"was {seen!r}, and its rows are {self._find_rows(run_id, place)}")
        for run_id in self._statuses:
            await self._check_records(app, run_id)
        self._check_finished()

    def _report(self, run_id: str, place: str, problem: str) -> None:
        self._ledger.problems.append(f"run {run_id}: transaction {place} {problem}")

    def _find_rows(self, run_id: str, place: str) -> list[str]:
        """Return the rows of a call. A fork has copied calls whose rows are those of the first run."""
        origin = run_id.removesuffix("-fork") if run_id in self._ledger.forks else run_id
        return self._rows.get((run_id, place)) or self._rows.get((origin, place), [])

    async def _check_records(self, app: App, run_id: str) -> None:
        try:
            stored = await app.open_store.load(run_id)
        except RunNotFound:
            return  # its retention has ended
        calls = _read_calls(stored)
        recorded = {get_place(call): call for call in calls}
        for place, call in recorded.items():
            expected = [call.result] if call.state != "error" and call.result is not None else []
            rows = self._find_rows(run_id, place)
            if rows != expected and (expected or (run_id, place) in self._rows):
                self._report(
                    run_id, place, f"is recorded as {call.state} with {call.result!r}, and its rows are {rows}"
                )
        restarts = _count_restarts(stored)
        for place in [place for run, place in self._rows if run == run_id and place not in recorded]:
            # A restart drops the records of its life.
            if not restarts or int(place.partition(".")[0]) >= restarts:
                self._report(run_id, place, f"has rows, and no record: {self._rows[run_id, place]}")

    def _check_finished(self) -> None:
        """Check that the model of an agent that is done has seen the result of each transaction."""
        for effect in self._ledger.begun:
            run = self._planned.get(effect.run_id)
            is_done = (
                self._statuses.get(effect.run_id) == "done" and run is not None and run.agent in ("actor", "staged")
            )
            if effect.kind == "transaction" and is_done and effect.call_id not in self._ledger.results[effect.run_id]:
                self._report(effect.run_id, effect.call_id, "was called, and its run is done without its result")


def _count_restarts(stored: StoredRun) -> int:
    if get_loop_name(stored.record) != WORKFLOW_LOOP_NAME:
        return 0
    return Life.from_state(decode_run(stored, NATIVE_CODEC).state).restarts


def _read_calls(stored: StoredRun) -> list[CallRecord]:
    transcript = Transcript(get_loop_name(stored.record))
    transcript.read(stored.entries)
    return [call for call in transcript.calls if call.tool == BOOK.name]
