"""Checks of single scenarios: every message of a conversation is used once; exactly the recorded steps are undone."""

import json
from contextlib import suppress

from holdfast.app import App
from holdfast.checkpoint.errors import ConversationClosed, RunEnded
from holdfast.core.run.messages import User
from holdfast.runtime.operations.conversations import Turn
from holdfast.testing.simulation.plan import PlannedRun
from holdfast.testing.simulation.world.client_jobs import Said
from holdfast.testing.simulation.world_ledger import WorldLedger

#: The ids of conversations begin with it.
CHAT = "chat:"


class ConversationChecks:
    """What holds for the conversations of a world."""

    def __init__(self, ledger: WorldLedger) -> None:
        self._ledger = ledger

    def _list_said(self, run_id: str) -> list[Said]:
        return [what for kind, chat, what in self._ledger.acknowledged if kind == "say" and chat == run_id]

    async def _read_turns(self, app: App, run_id: str) -> list[Turn[object]]:
        return await app.conversation("talker", run_id.rpartition(":")[2]).history()

    async def close(self, app: App, run_id: str) -> None:
        """Close a conversation once all its messages have been used."""
        turns = await self._read_turns(app, run_id)
        texts = [text for turn in turns for text in _list_texts(turn)]
        is_idle = all(turn.status != "running" for turn in turns)
        if is_idle and all(each.action.text in texts for each in self._list_said(run_id)):
            with suppress(ConversationClosed, RunEnded):
                await app.conversation("talker", run_id.rpartition(":")[2]).close()

    async def check(self, app: App, statuses: dict[str, str]) -> None:
        for run_id in statuses:
            if run_id.startswith(CHAT) and statuses[run_id] == "done":
                self._check_turns(run_id, await self._read_turns(app, run_id))

    def _check_turns(self, run_id: str, turns: list[Turn[object]]) -> None:
        said, problems = self._list_said(run_id), self._ledger.problems
        numbers: dict[str, int] = {}
        for turn in turns:
            for text in _list_texts(turn):
                if text in numbers:
                    problems.append(f"{run_id}: message {text!r} is in turns {numbers[text]} and {turn.number}")
                numbers[text] = turn.number
            if turn.status not in ("done", "interrupted"):
                problems.append(f"{run_id}: turn {turn.number} is {turn.status}: {turn.error}")
        for each in said:
            if each.action.text not in numbers:
                problems.append(f"{run_id}: message {each} was acknowledged, and is in no turn")
        queued = [each for each in said if each.action.when == "queue" and each.action.text in numbers]
        for early in queued:
            for late in queued:
                is_earlier = early.acknowledged_at < late.asked_at
                if is_earlier and numbers[early.action.text] > numbers[late.action.text]:
                    problems.append(f"{run_id}: message {late} was sent after {early}, and used before it")


def _list_texts(turn: Turn[object]) -> list[str]:
    return [message.text for message in turn.messages if isinstance(message, User)]


def check_undo(ledger: WorldLedger, run: PlannedRun, status: str) -> None:
    """Check that exactly the recorded steps of a workflow were undone, if it failed, and those of its failed sagas."""
    run_id = run.run_id
    seen, undone = ledger.seen[run_id], set(ledger.undone[run_id])
    made = {each.call_id for each in ledger.begun if each.run_id == run_id and each.tool == "reserve"}
    recorded = {place for place in made if "done, call" in seen.get(place, "")}
    last = max((place.partition(".")[0] for place in seen), default="0")
    sagas = [place for place, value in seen.items() if value == "'undone'"]
    in_sagas = {place for place in recorded if any(place.startswith(f"{saga}s") for saga in sagas)}
    if status == "failed":
        expected = {place for place in recorded if place.startswith(f"{last}.")} | in_sagas
    elif status == "done":
        expected = in_sagas
    elif status == "cancelled":
        durable = (
            recorded if not ledger.kills else {place for place in recorded if place in ledger.durable_values[run_id]}
        )
        # The code of this life has ended, and the next one has recorded nothing: the steps of this one may be final.
        has_restarted = f"{last}.t" in seen and int(last) + 1 < json.loads(run.prompt)["lives"]
        expected = (
            in_sagas if has_restarted else {place for place in durable if place.startswith(f"{last}.")} | in_sagas
        )
        undone &= expected
    else:
        return
    if ledger.has_zombies:
        return
    if missing := expected - undone:
        ledger.problems.append(f"run {run_id} is {status}, and these steps were not undone: {sorted(missing)}")
    if wrong := undone - expected - _list_lost(made, seen, status):
        ledger.problems.append(f"run {run_id} is {status}, and these steps were undone: {sorted(wrong)}")


def _list_lost(made: set[str], seen: dict[str, str], status: str) -> set[str]:
    """Return the steps that may be recorded, although the code has not seen it: their branches have lost a race.

    The place of a step in a saga begins with that of the saga and `s`. Those of a workflow that is done are undone only
    with their saga.
    """
    lost = {place for place in made if ".x" in place and not {place, place.partition("s")[0]} <= seen.keys()}
    return lost if status == "failed" else {place for place in lost if "s" in place}
