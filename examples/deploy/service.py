"""The service that the files of this folder deploy: an agent that refunds orders, and its HTTP API.

holdfast worker service:app    executes runs; any number of them
uvicorn service:server         accepts runs and executes none
"""

import hmac
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from holdfast import Agent, App, ApprovalRequest, Bounds, CheckpointSettings, current_call, tool
from holdfast.adapters.chat_completions import ChatCompletions
from holdfast.batteries.audit import Audit
from holdfast.batteries.budget import Budget, Limit
from holdfast.batteries.rate_limits import RateLimits
from holdfast.core.redaction import Redactor
from holdfast.errors import StoreError
from holdfast.web.api import make_api
from holdfast.web.auth import Principal


def needs_approval(arguments: dict[str, Any]) -> ApprovalRequest | bool:
    if arguments["amount"] <= 50:
        return False
    return ApprovalRequest(reason="more than 50 euros", expires_in=timedelta(days=2), audience="support")


@tool(effect="pure")
def find_order(order: str) -> dict[str, Any]:
    """Find an order by its number."""
    return {"order": order, "paid": 80.0, "status": "delivered"}


@tool(effect="idempotent", approval=needs_approval)
def refund(order: str, amount: float) -> str:
    """Refund an amount of an order, in euros."""
    # The payment provider ignores a second request with the same key: that makes the call idempotent.
    return f"refunded {amount:.2f} for order {order}, key {current_call().idempotency_key[:8]}"


redact = Redactor(patterns=[r"sk-[\w-]{8,}", r"\b\d{4}(?:[ -]?\d{4}){3}\b"])  # keys, and numbers of cards

app = App(
    [
        Agent(
            name="refunds",
            instructions="You handle refunds. Look the order up before you refund anything.",
            model=ChatCompletions(
                os.environ.get("MODEL", "gpt-5-mini"),
                base_url=os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
            ),
            tools=[find_order, refund],
            bounds=Bounds(max_steps=20, max_runtime=timedelta(minutes=10)),
        )
    ],
    # The store is that of HOLDFAST_STORE. The rows of the batteries are in it too, and all processes share them.
    checkpoint=CheckpointSettings(redact=redact),
    audit=Audit(redact=redact),
    budget=Budget(Limit(tokens=5_000_000, window=timedelta(days=1), per="all"), Limit(tokens=500_000)),
    rate_limits=RateLimits(requests_per_minute=500),
)

#: The same App for web processes: it submits, reads and answers, and leaves the runs to the workers.
web = app.replace(worker=False)


def authorize(request: Request) -> Principal | None:
    """Accept the one token of this example. A service with users returns a principal for each of them."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), os.environ["API_TOKEN"].encode()):
        return None
    return Principal(caller_id="ops", sees_all=True)


async def check_health(request: Request) -> PlainTextResponse:
    """Say whether the store answers."""
    try:
        await web.list(limit=1)
    except StoreError as exc:
        return PlainTextResponse(f"the store fails: {exc}\n", status_code=503)
    return PlainTextResponse("ok\n")


@asynccontextmanager
async def lifespan(server: Starlette) -> AsyncIterator[None]:
    async with web:
        yield


server = Starlette(
    routes=[Route("/healthz", check_health), Mount("/api", make_api(web, authorize=authorize))], lifespan=lifespan
)
