"""Mail to runs: what is refused, what is pending, and who is woken."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, Value, ask_person, current_call, tool, wait_for
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.store import END
from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.run.waiting import Decision
from holdfast.runtime.operations.mailing import AlreadyAnswered, check_mail_id, check_size
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)
#: The largest body of a mail.
MAX_BYTES = 4 * 1024 * 1024


def make_asking_agent() -> Agent[Any]:
    model = ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "done")
    return Agent(name="a", model=model, tools=[ask_person])


@pytest.mark.parametrize(
    ("call_id", "decision", "text"),
    [
        ("c", None, "run r: call c was already answered: another answer was first"),
        ("", None, "run r: the call was already answered: another answer was first"),
        ("c", Decision(kind="deny", by="ann", at=AT),
         "run r: call c was already answered: ann answered first (deny) at 2030-01-01 12:00:00 UTC"),
        ("c", Decision(kind="approve"), "run r: call c was already answered: another caller answered first (approve)"),
    ],
)  # fmt: skip
def test_a_second_answer_reads_who_was_first(call_id: str, decision: Decision | None, text: str) -> None:
    error = AlreadyAnswered("r", call_id, decision)
    assert str(error) == text
    assert (error.run_id, error.call_id, error.decision) == ("r", call_id, decision)


def test_the_size_of_a_mail_and_the_length_of_its_id_are_bounded() -> None:
    largest = b"x" * MAX_BYTES
    assert check_size(largest) is largest
    with pytest.raises(PayloadError, match=f"the mail has {MAX_BYTES + 1} bytes: send at most {MAX_BYTES}"):
        check_size(largest + b"x")
    for accepted in ("x", "x" * 200, "answers", "my turn:1"):
        check_mail_id(accepted)
    for refused in ("", "x" * 201, 7, "answer:1", "turn:1", "ended:1"):
        with pytest.raises(DefinitionError, match="the id is"):
            check_mail_id(refused)


class MailCounter(MemoryStore):
    """Counts the mails that were read."""

    read = 0

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        self.read += len(stored.mail)
        return stored


async def test_sending_mail_to_a_run_reads_none_of_its_mail() -> None:
    """Else each message to a run would cost as much as all before it."""
    store = MailCounter()
    async with App([make_asking_agent()], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        for number in range(20):
            await app.send("r", f"message {number}")
            await app.signal("r", "ready", number)
        assert store.read == 0
        assert len((await store.load("r")).mail) == 40


async def test_the_name_of_a_signal_has_1_to_200_characters() -> None:
    store = MemoryStore()
    async with App([make_asking_agent()], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        for refused in ("", "x" * 201, 7):
            with pytest.raises(DefinitionError, match="the name of the signal is"):
                await app.signal("r", refused)  # type: ignore[arg-type]
        await app.signal("r", "x", id="one")
        await app.signal("r", "x" * 200, id="two")
        mail = (await store.load("r", after=END)).mail
    assert [(each.mail_id, each.topic) for each in mail] == [("one", "signal:x"), ("two", f"signal:{'x' * 200}")]


async def test_pending_calls_are_filtered_and_waiting_runs_are_read_once() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([make_asking_agent()], store, clock=clock, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r", caller_id="ann")
        hour = timedelta(hours=1)
        await clock.advance(hour)
        store.calls.clear()
        cases: list[tuple[dict[str, Any], bool]] = [
            ({}, True),
            ({"agent": "a", "caller": "ann", "tool": "ask_person", "older_than": hour}, True),
            ({"older_than": hour + timedelta(seconds=1)}, False),
            ({"agent": "b"}, False),
            ({"caller": "bob"}, False),
            ({"tool": "pay"}, False),
        ]
        for given, found in cases:
            assert [each.call_id for each in await app.pending(**given)] == (["c"] if found else []), given
        assert set(store.calls) == {"list_page"}, "no mail of a run that waits is read: it would have woken it"


async def test_an_answer_is_accepted_although_its_run_is_removed_at_once() -> None:
    store = ProbeStore(MemoryStore())
    async with App([make_asking_agent()], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")

        async def remove(method: str) -> None:
            if method == "get_record" and "post" in store.calls:
                raise RunNotFound("r")

        store.calls.clear()
        store.before = remove
        await app.answer("r", "c", Value("blue"))
        store.before = None
        assert [mail.topic for mail in (await store.load("r", after=END)).mail] == ["answer:1:c"]


async def test_a_signal_for_a_child_wakes_its_parent() -> None:
    waits = ScriptedModel(tool_reply(call("c", "wait_for", name="paid")), "was paid")
    child = Agent(name="child", model=waits, tools=[wait_for])

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "go")).output)

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "delegate")), "thanks"), tools=[delegate])
    clock = ManualClock()
    async with App([parent, child], MemoryStore(clock=clock), clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="p")
        [below] = (await app.list(parent="p")).runs
        await app.signal(below.run_id, "paid")
        await clock.advance(timedelta(seconds=10))
        assert (await app.get("p")).output == "thanks"
