"""The fleet of `holdfast demo --ui`: agents with scripted models, and runs in every status."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from holdfast.app import App
from holdfast.batteries.budget import Budget, Limit
from holdfast.batteries.schedule import Schedule, ScheduleError
from holdfast.config import CheckpointSettings, Retention, WorkerSettings
from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.agent_tools import AgentToolProvider
from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import emit_text
from holdfast.core.agents.waiting_tools import ask_person, sleep
from holdfast.core.run.messages import Message, Reply, ToolCall, ToolResult, Usage
from holdfast.core.run.waiting import ApprovalRequest
from holdfast.root_error import HoldfastError

#: Seconds that a scripted model takes for a reply.
_THINKING = 0.4
#: Seconds between two further runs.
_PAUSE = 20
#: Further runs that need a person are queued while fewer than this many wait.
_MAX_PENDING = 8
#: The agent that gets a report of each killed worker.
INCIDENT_AGENT = "incidents"
_LATER = (("refunds", "The kettle does not boil"), ("photo_check", "photo-9.jpg"), ("travel", "A week in the Alps"))

Turn = tuple[str, list[ToolCall]]
Model = Callable[[Sequence[Message], Sequence[Any]], Awaitable[Reply]]


def build_fleet(store: str, *, take_runs: bool = True) -> App:
    """Return the App of the demo, not open."""
    agents = [_refunds(), _photo_check(), _researcher(), _travel(), _digest(), _mailer(), _concierge(), _incidents()]
    return App(
        agents,
        store,
        # The list stays short enough to read, for hours.
        checkpoint=CheckpointSettings(retention=Retention(done=timedelta(minutes=10), cancelled=timedelta(minutes=10))),
        worker=WorkerSettings(take_runs=take_runs, handle_signals=False),
        # Far more than the fleet spends in an hour: its runs are never refused.
        budget=Budget(
            Limit(cost_usd=25.0, window=timedelta(hours=1)),
            Limit(tokens=50_000_000, cost_usd=60.0, per="all", window=timedelta(hours=1)),
        ),
        tools=[AgentToolProvider([agents[1]], allowed=lambda info: ["photo_check"])],
        schedule=Schedule(),
    )


async def add_jobs(schedule: Schedule) -> None:
    """Add the jobs of the demo. Those that exist are left alone."""
    jobs = (
        ("morning digest", "digest", "Summarise what happened yesterday", "0 7 * * 1-5", "Europe/Lisbon"),
        ("photo check", "photo_check", "Check the photos that came in", "*/2 * * * *", "UTC"),
    )
    for name, agent, prompt, cron, timezone in jobs:
        with suppress(ScheduleError):  # the job exists, or cronsim is not installed
            await schedule.add(name, agent, prompt, cron, timezone=timezone, caller_id="schedule")


async def submit_runs(app: App) -> None:
    """Queue the runs of the demo. Those that exist are left alone."""
    prompts = [
        ("refunds", "refund-8841", "Customer 8841 says the lamp arrived broken, wants the money back", "alice"),
        ("refunds", "refund-8852", "Customer 8852 never got the parcel", "alice"),
        ("travel", "trip-ee06", "Two nights in Lisbon", "dave"),
        ("travel", "trip-ee07", "Three nights in Portugal, please", "dave"),
        ("digest", "nightly-0716", "Summarise what happened yesterday", "schedule"),
        ("mailer", "mail-4410", "Answer the open support mails", "alice"),
        ("researcher", "research-20c1", "Compare the licences of five workflow engines", "bob"),
    ]
    for agent, run_id, prompt, caller in prompts:
        with suppress(HoldfastError):
            await app.submit(agent, prompt, run_id=run_id, caller_id=caller, labels={"tenant": "acme"})
    chat = app.conversation("concierge", "lobby", caller_id="frank")
    await chat.post("Is the pool open?", id="hello")


async def keep_submitting(app: App) -> None:
    """Queue the runs of the demo, then another one now and then, unless the visitor has enough to answer."""
    await submit_runs(app)
    for number in itertools.count(1):
        await asyncio.sleep(_PAUSE)
        agent, prompt = _LATER[number % len(_LATER)]
        if agent != "photo_check" and len(await app.pending()) >= _MAX_PENDING:
            continue
        await app.submit(agent, prompt, run_id=f"{agent}-{number:03}", caller_id="erin", labels={"tenant": "globex"})


def _script(*turns: Turn, tokens: int = 900) -> Model:
    """Return a model that gives turn n to a conversation with n replies."""

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        await asyncio.sleep(_THINKING)
        number = min(sum(isinstance(message, Reply) for message in messages), len(turns) - 1)
        text, calls = turns[number]
        usage = Usage(input_tokens=tokens + 210 * number, output_tokens=85, cost_usd=0.004 + 0.0021 * number)
        return Reply(text=text, tool_calls=calls, usage=usage)

    return model


def _call(call_id: str, name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def _refunds() -> Agent[Any]:
    @tool(effect="pure")
    async def find_order(customer: int) -> dict[str, Any]:
        """Find the latest order of a customer."""
        await asyncio.sleep(0.3)
        return {"order": "A17", "item": "lamp", "paid": 129.0, "delivered": "2026-11-12", "carrier": "Northline"}

    @tool(approval=ApprovalRequest(expires_in=timedelta(days=1), audience="support-lead"))
    async def refund(order: str, amount: float) -> str:
        """Pay the money back."""
        return f"refunded {amount:.2f} for {order}"

    model = _script(
        ("I will look up the order and check the photo.", [_call("c1", "find_order", customer=8841)]),
        ("The order is there. Now the photo.", [_call("c2", "photo_check", prompt="photo-1.jpg: is the lamp broken?")]),
        (
            "The lamp is **broken** and was paid for. I refund `129.00` once a support lead approves.",
            [_call("c3", "refund", order="A17", amount=129.0)],
        ),
        ("The refund is on its way.", []),
    )
    instructions = "You handle refunds. Check the order first. Never refund more than was paid."
    return Agent(name="refunds", model=model, tools=[find_order, refund], instructions=instructions)


def _photo_check() -> Agent[Any]:
    return Agent(name="photo_check", model=_script(("The glass is cracked in two places: **broken**.", [])))


def _researcher() -> Agent[Any]:
    @tool(effect="pure")
    async def read_page(url: str) -> str:
        """Read a web page."""
        await asyncio.sleep(0.5)
        return f"# {url}\n" + "Durable execution keeps the state of a program outside its process. " * 60

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        await asyncio.sleep(_THINKING)
        read = sum(isinstance(message, ToolResult) for message in messages)
        if read >= 160:
            return Reply(text="All pages are read.")
        number = read // 2
        calls = [_call(f"p{read + 1}", "read_page", url=f"https://example.com/engine/{number}/guarantees")]
        calls.append(_call(f"p{read + 2}", "read_page", url=f"https://example.com/engine/{number}/limits"))
        usage = Usage(input_tokens=1800 + 9 * number, output_tokens=140, cost_usd=0.003)
        return Reply(text=f"Pages {read + 1} and {read + 2}.", tool_calls=calls, usage=usage)

    return Agent(name="researcher", model=model, tools=[read_page])


def _travel() -> Agent[Any]:
    model = _script(
        ("When would you like to travel?", [_call("q1", "ask_person", question="When?", options=["May", "June"])]),
        ("The nights are booked, in **Alfama**, with a view: https://example.com/booking/4471", []),
    )
    return Agent(name="travel", model=model, tools=[ask_person])


def _digest() -> Agent[Any]:
    model = _script(("Three incidents, all closed.", []))
    waiting = _script(("I look again in an hour.", [_call("s1", "sleep", seconds=3600)]), ("Nothing happened.", []))
    phases = [Phase(name="collect", model=model), Phase(name="watch", model=waiting, tools=[sleep])]
    return Agent(name="digest", phases=phases)


def _mailer() -> Agent[Any]:
    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        raise PermissionError("the provider refused the request: invalid API key")

    return Agent(name="mailer", model=model)


def _concierge() -> Agent[Any]:
    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        text = "Until ten in the evening. Towels are at the entrance. What else can I do for you?"
        for word in text.split(" "):
            await emit_text(f"{word} ")
            await asyncio.sleep(_THINKING / 4)
        return Reply(text=text, usage=Usage(input_tokens=220, output_tokens=24, cost_usd=0.0008))

    return Agent(name="concierge", model=model)


def _incidents() -> Agent[Any]:
    return Agent(name=INCIDENT_AGENT, model=_script(("Noted. No finished step was repeated.", [])))
