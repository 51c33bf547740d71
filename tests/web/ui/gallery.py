"""Runs for the pictures of the page: killed, edited, parked, in doubt, failed, waiting, long. Written into a store."""

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.checkpoint.codec import Begin, Outcome, Step, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import AttemptRecord, Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.state import CallTime, PhaseOutput, StepCalls, StepTimes
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.waiting import Decision, WaitingCall
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import ManualClock

SONNET, HAIKU = "claude-sonnet-4-5", "claude-haiku-4-5"
_TRACE = """Traceback (most recent call last):
  File "shop/tools.py", line 41, in carrier_status
    return await carrier.get(order)
  File "shop/carrier.py", line 88, in get
    raise TimeoutError("api.carrier.example did not answer within 2 s")
TimeoutError: api.carrier.example did not answer within 2 s
"""


class Journal:
    """Builds the journal of one run, step by step."""

    def __init__(self, info: RunInfo, at: datetime, model: str = SONNET) -> None:
        self.info, self.start, self.at, self._model = info, at, at, model
        self.progress = Progress()
        self.phases = 0
        self._bodies = [(EntryKind.BEGIN, encode(Begin(info=info)))]
        self._add(User(text=info.prompt_text))

    def _add(self, message: Message) -> None:
        self._bodies.append((EntryKind.MESSAGE, NATIVE_CODEC.encode(message)))

    def instruct(self, text: str) -> None:
        self._add(System(text=text))

    def ask(self, text: str, *calls: ToolCall) -> None:
        """Add a reply whose calls have no result yet."""
        self._add(Reply(text=text, tool_calls=calls, model=self._model))

    def step(
        self,
        text: str,
        *calls: tuple[ToolCall, ToolResult, int],
        model_ms: int = 1800,
        usage: tuple[int, int, float] = (1200, 140, 0.0081),
        pause: timedelta = timedelta(0),
        phase: str = "",
        decisions: dict[str, Decision] | None = None,
        traces: dict[str, str] | None = None,
    ) -> None:
        """Add a finished step: each call has its result, and how many milliseconds it took."""
        self._add(Reply(text=text, tool_calls=[call for call, _, _ in calls], model=self._model))
        for _, result, _ in calls:
            self._add(result)
        took = model_ms + max((length for _, _, length in calls), default=0)
        self.at += pause + timedelta(milliseconds=took)
        tokens_in, tokens_out, cost = usage
        used = self.progress.own_usage + Usage(
            input_tokens=tokens_in, output_tokens=tokens_out, cost_usd=cost, requests=1, tool_calls=len(calls)
        )
        elapsed = self.progress.elapsed + timedelta(milliseconds=took)
        number = self.progress.steps + 1
        self.progress = Progress(steps=number, own_usage=used, elapsed=elapsed, phase=phase, phases=self.phases)
        times = StepTimes(took, model_ms, tuple(CallTime(call.id, model_ms, model_ms + ms) for call, _, ms in calls))
        ended = Step(at=self.at, progress=self.progress, times=times, decisions=decisions or {}, traces=traces or {})
        self._bodies.append((EntryKind.STEP, encode(ended)))

    def end_phase(self, name: str, output: Any, prompt: str = "") -> None:
        """Finish a phase, and begin the next one with its prompt."""
        body = PhaseOutput(name=name, output=output, steps=self.progress.steps, elapsed=self.progress.elapsed)
        self._bodies.append((EntryKind.PHASE, encode(body)))
        self.phases += 1
        if prompt:
            self._add(User(text=prompt))

    def end(self, output: Any = None, error: str | None = None) -> None:
        self._bodies.append((EntryKind.OUTCOME, encode(Outcome(output=output, error=error))))

    @property
    def entries(self) -> list[Entry]:
        return [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(self._bodies)]


def _make_attempt(journal: Journal, status: RunStatus) -> AttemptRecord:
    """Return the only attempt of a run. An interrupted run has lost its worker."""
    end = AttemptEnd.DIED if status is RunStatus.INTERRUPTED else AttemptEnd(status.value)
    return AttemptRecord(number=1, worker_id="w-7f3a", began_at=journal.start, saved_at=journal.at, end=end)


class Gallery:
    """A store whose clock is set to the time of each run."""

    def __init__(self, path: Path, now: datetime) -> None:
        self.now = now
        self._clock = ManualClock(now - timedelta(days=2))
        self._store = SqliteStore(path, durability="process", clock=self._clock)

    async def __aenter__(self) -> "Gallery":
        await self._store.open()
        await self._store.register_worker(WorkerIdentity(worker_id="w-19aa", process=this_process()))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._store.deregister_worker("w-19aa")
        await self._store.close()

    async def _set(self, at: datetime) -> None:
        await self._clock.jump(at - self._clock.now())

    async def add(
        self,
        journal: Journal,
        status: RunStatus,
        *,
        reason: str = "",
        attempts: Sequence[AttemptRecord] = (),
        calls: StepCalls = StepCalls(),  # noqa: B008 - frozen
        parent: str | None = None,
        wake_on: Sequence[str] = (),
        wake_at: datetime | None = None,
    ) -> None:
        """Store the run as it was created, and how it stands at the time of its last step."""
        info, progress = journal.info, journal.progress
        done = Progress(
            steps=progress.steps,
            own_usage=progress.own_usage,
            elapsed=progress.elapsed,
            phase=progress.phase,
            phases=journal.phases,
            calls=calls,
            attempts=tuple(attempts) or (_make_attempt(journal, status),),
        )
        await self._set(journal.start)
        new = NewRun(
            run_id=info.run_id,
            agent_name=info.agent_name,
            caller_id=info.caller_id,
            labels=info.labels,
            parent_run_id=parent,
            info=encode(info.summarize()),
            progress=encode(done),
            entries=journal.entries,
        )
        if status is RunStatus.QUEUED:
            await self._store.create(new)
            return
        claim = await self._store.create(new, worker_id="w-19aa")
        assert claim is not None
        await self._set(journal.at)
        kept = timedelta(days=7) if status in (RunStatus.DONE, RunStatus.FAILED) else None
        release = Release(status=status, reason=reason, retention=kept, wake_on=wake_on, wake_at=wake_at)
        await self._store.release(claim, release)


def _call(call_id: str, name: str, took: int, result: Any, /, *, error: bool = False, **arguments: Any) -> Any:
    call = ToolCall(id=call_id, name=name, arguments=arguments)
    return call, ToolResult(call_id=call_id, tool=name, content=result, error=error), took


def make_refund(now: datetime) -> tuple[Journal, list[AttemptRecord]]:
    """Return a run with two phases, a worker that died, a failed call, an edited approval and a parked stretch."""
    prompt = "Customer 8841 says the lamps of order A17 arrived broken and wants the money back for all three."
    info = RunInfo(
        run_id="refund-8841", agent_name="refunds", prompt=prompt, caller_id="alice", labels={"tenant": "acme"}
    )
    start = now - timedelta(minutes=54)
    journal = Journal(info, start)
    journal.instruct("You handle refunds. Check the order first. Never refund more than was paid.")
    lamps = [{"name": "lamp, brass", "paid": 129.0, "returned": False}] * 3
    order = {"order": "A17", "items": lamps, "paid": 387.0, "delivered": None}
    journal.step(
        "I will look up the order and check the photos.",
        _call("c1", "find_order", 1900, order, customer=8841),
        _call("c2", "photo_check", 6400, [True, True, False], photos=3, question="Which of these lamps are broken?"),
        model_ms=4200,
        phase="investigate",
    )
    journal.step(
        "Two of the lamps are broken. When was the parcel delivered?",
        _call(
            "c3",
            "carrier_status",
            2000,
            "TimeoutError: api.carrier.example did not answer within 2 s",
            error=True,
            order="A17",
        ),
        model_ms=3000,
        usage=(1611, 88, 0.0070),
        phase="investigate",
        traces={"c3": _TRACE},
    )
    journal.step(
        "The carrier did not answer. I ask again, by the number of the parcel.",
        _call("c4", "carrier_status", 1100, {"delivered": "9 Nov", "days": 3}, parcel="JD01 4600 0071"),
        usage=(1790, 97, 0.0088),
        phase="investigate",
    )
    journal.end_phase(
        "investigate", {"broken": [1, 2], "delivered": "9 Nov"}, "Settle the case: refund what is broken."
    )
    asked_at = journal.at + timedelta(seconds=4)
    report = (
        "### What I found\n\n| Lamp | Photo | State | Paid |\n|---|---|---|---:|\n"
        "| 1 | photo-1.jpg | broken shade | 129.00 |\n"
        "| 2 | photo-2.jpg | broken socket | 129.00 |\n| 3 | photo-3.jpg | intact | 129.00 |\n\n"
        "- The parcel came 3 days ago, so the order is inside its 14 days.\n"
        "- The rule for sets lets me refund the **whole** set if one part is broken:\n\n"
        "```\nif order.is_set and any(lamp.broken for lamp in order.items):\n    refund = order.paid  # 387.00\n```\n\n"
        "I ask for `387.00`."
    )
    edited = Decision(
        kind="approve",
        arguments={"order": "A17", "amount": 258.0, "reason": "damaged"},
        comment="Only two are broken, the set is not sold as one.",
        by="carol",
        via="web",
        at=journal.at + timedelta(minutes=41),
    )
    journal.step(
        report,
        _call(
            "c5", "refund", 800, {"refund": "rf_20417", "amount": 258.0}, order="A17", amount=387.0, reason="damaged"
        ),
        model_ms=4000,
        usage=(2644, 402, 0.0153),
        pause=timedelta(minutes=41),
        phase="settle",
        decisions={"c5": edited},
    )
    parked_at = journal.at
    journal.step(
        "The refund is booked. I write to the customer.",
        _call("c6", "send_mail", 600, "queued", to="customer 8841", subject="Your refund of 258.00 EUR"),
        model_ms=2800,
        usage=(3402, 255, 0.0092),
        pause=timedelta(minutes=12),
        phase="settle",
    )
    answer = (
        "**258.00 EUR** of order A17 are refunded, and the customer has a mail about it.\n\n"
        "- Lamps 1 and 2 are broken and are refunded, 129.00 EUR each.\n"
        "- Lamp 3 is intact; carol decided that it stays."
    )
    journal.step(answer, model_ms=2200, usage=(3561, 94, 0.0047), phase="settle")
    journal.end_phase("settle", None)
    journal.end(answer)
    died = start + timedelta(seconds=6.1)
    back = parked_at + timedelta(minutes=12)
    attempts = [
        AttemptRecord(number=1, worker_id="w-19aa", began_at=start, saved_at=died, end=AttemptEnd.DIED),
        AttemptRecord(
            number=2,
            worker_id="w-7f3a",
            began_at=died + timedelta(seconds=0.3),
            saved_at=asked_at,
            end=AttemptEnd.WAITING,
        ),
        AttemptRecord(
            number=3,
            worker_id="w-7f3a",
            began_at=asked_at + timedelta(minutes=41),
            saved_at=parked_at,
            end=AttemptEnd.PARKED,
        ),
        AttemptRecord(number=4, worker_id="w-7f3a", began_at=back, saved_at=journal.at, end=AttemptEnd.DONE),
    ]
    return journal, attempts


def make_research(run_id: str, now: datetime, steps: int, prompt: str) -> Journal:
    """Return a long run without phases."""
    info = RunInfo(run_id=run_id, agent_name="researcher", prompt=prompt, caller_id="bob")
    journal = Journal(info, now - timedelta(hours=1), HAIKU)
    for number in range(1, steps + 1):
        url = f"https://example.com/engine/{number}/guarantees"
        text = "Durable execution keeps the state of a program outside its process. " * 8
        failed = number % 37 == 0
        result = _call(f"p{number}", "read_page", 400, "HTTPError: 503" if failed else text, error=failed, url=url)
        usage = (1800 + 9 * number, 140, 0.003 + 0.002 * (number % 7))
        journal.step(f"Page {number}: what does it promise after a crash?", result, model_ms=900, usage=usage)
    return journal


async def store_gallery(path: Path, now: datetime, *, day: bool = True) -> None:
    """Fill an empty file with the runs of a busy day, or with those that are worth a look."""
    async with Gallery(path, now) as gallery:
        if day:
            await _store_day(gallery, now)
        await _store_needs(gallery, now)
        journal, attempts = make_refund(now)
        await gallery.add(journal, RunStatus.DONE, attempts=attempts)
        child = Journal(
            RunInfo(
                run_id="refund-8841:photo_check", agent_name="photo_check", prompt="Which of these lamps are broken?"
            ),
            journal.start + timedelta(seconds=4.4),
            "gemini-2.5-flash",
        )
        child.step("[true, true, false]", model_ms=5900, usage=(800, 12, 0.0040))
        child.end([True, True, False])
        await gallery.add(child, RunStatus.DONE, parent="refund-8841")
        research = make_research("research-20c1", now, 121, "Compare the guarantees of five workflow engines.")
        await gallery.add(research, RunStatus.INTERRUPTED)


async def _store_day(gallery: Gallery, now: datetime) -> None:
    """Store the runs of the last day, so that the agents page has something to count."""
    agents = [("refunds", SONNET, 14), ("mailer", HAIKU, 9), ("researcher", SONNET, 6), ("photo_check", HAIKU, 17)]
    for hour in range(23, 0, -1):
        for agent, model, share in agents:
            # The same numbers in every picture.
            seed = int(hashlib.sha256(f"{agent} {hour}".encode()).hexdigest()[:8], 16)
            for number in range(seed % share // 3 + (1 if 9 <= hour <= 14 else 0)):
                failed = (seed >> number) % 11 == 0
                info = RunInfo(
                    run_id=f"{agent.replace('_', '-')}-{hour:02}{number}",
                    agent_name=agent,
                    prompt=f"Case {seed % 9000 + number}: what happened to the parcel?",
                    caller_id="alice",
                )
                journal = Journal(info, now - timedelta(hours=hour, minutes=-number), HAIKU if number % 3 else model)
                tool = {"refunds": "find_order", "mailer": "send_mail", "researcher": "read_page"}.get(agent)
                call = [] if tool is None else [_call("t1", tool, 300 + seed % 900, {"ok": True}, case=number)]
                journal.step("I look into it.", *call, model_ms=600 + seed % 5000)
                if failed:
                    journal.end(error="PermissionError: the provider refused the request: invalid API key")
                else:
                    journal.step("It is settled.", usage=(1500, 60, 0.0046))
                    journal.end("It is settled.")
                reason = "PermissionError: the provider refused the request: invalid API key" if failed else ""
                await gallery.add(journal, RunStatus.FAILED if failed else RunStatus.DONE, reason=reason)


async def _store_needs(gallery: Gallery, now: datetime) -> None:
    """Store a call in doubt, an approval, a question, and parked runs."""
    wire = ToolCall(id="w1", name="wire", arguments={"iban": "DE89 3704 0044 0532 0130 00", "cents": 129900})
    info = RunInfo(run_id="wire-1", agent_name="treasury", prompt="Pay the invoice of the carrier.", caller_id="ann")
    journal = Journal(info, now - timedelta(minutes=5))
    journal.ask("I transfer the amount now.", wire)
    await gallery.add(journal, RunStatus.PARKED, reason="in doubt: wire", calls=StepCalls(in_doubt=("w1",)))
    asked = now - timedelta(minutes=12)
    cases = [
        ("refund-8852", "refunds", "approval", "refund", "support-lead", {"order": "A21", "amount": 387.0}),
        ("deploy-311", "releaser", "approval", "deploy", "ops-lead", {"service": "shop", "version": "7c1e"}),
        ("trip-ee07", "travel", "question", "ask_person", "", {"question": "When?", "options": ["May", "June"]}),
    ]
    texts = [
        ("Customer 8852 never got the parcel of order A21.", "The carrier lost the parcel on **9 Nov**."),
        ("Deploy the shop.", "All checks of `7c1e` have passed."),
        ("Three nights in Portugal.", "Both months have rooms near the sea."),
    ]
    for (run_id, agent, kind, tool, audience, arguments), (prompt, said) in zip(cases, texts, strict=True):
        journal = Journal(RunInfo(run_id=run_id, agent_name=agent, prompt=prompt, caller_id="dave"), asked)
        journal.ask(said, ToolCall(id="c1", name=tool, arguments=arguments))
        wait = WaitingCall(
            run_id=run_id,
            call_id="c1",
            step=1,
            tool=tool,
            kind=kind,  # type: ignore[arg-type]
            arguments=arguments,
            topic="answer:1:c1",
            asked_at=asked,
            expires_at=now + timedelta(hours=23),
            audience=audience,
        )
        calls = StepCalls(waits={"c1": wait})
        await gallery.add(journal, RunStatus.WAITING, reason=tool, calls=calls, wake_on=["answer:1:c1"])
    reasons = [
        *["budget: tenant acme has spent $20.00 of $20.00 in 24 h"] * 5,
        *["three workers in a row died in step 1, without progress"] * 2,
    ]
    for number, reason in enumerate(reasons):
        prompt = f"List all vendors of category {number} with a paid plan below 100 dollars a month."
        journal = make_research(f"research-1c0{number}", now, 2, prompt)
        await gallery.add(journal, RunStatus.PARKED, reason=reason)


async def store_many(path: Path, now: datetime, count: int) -> None:
    """Fill an empty file with runs that differ in little, some of which failed."""
    async with Gallery(path, now) as gallery:
        for number in range(count):
            info = RunInfo(run_id=f"order-{number:05}", agent_name="orders", prompt=f"Ship order {number}.")
            journal = Journal(info, now - timedelta(seconds=5 * (count - number)), HAIKU)
            journal.step("It is shipped.")
            await gallery.add(
                journal,
                RunStatus.FAILED if number % 50 == 0 else RunStatus.DONE,
                reason="ValueError: no stock" if number % 50 == 0 else "",
            )


async def register_fleet(store: RunStore | None) -> None:
    """Register two live workers that know the agents of the gallery, but one."""
    assert store is not None
    agents = ("mailer", "photo_check", "refunds", "releaser", "researcher", "travel", "treasurer")
    for worker_id in ("w-7f3a", "w-b201"):
        await store.register_worker(WorkerIdentity(worker_id=worker_id, process=this_process(), agents=agents))
