"""An agent whose provider is down."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast import Agent, Reply, Retry
from holdfast.errors import ModelUnavailable


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    raise ModelUnavailable("503")


agent = Agent(name="outage", model=model, retry=Retry(max_tries=2, initial_delay=timedelta(0)))
