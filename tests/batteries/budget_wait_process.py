"""Executes runs with a limit on their number. Ids that begin with `-` are waited for; `-` alone waits to be killed."""

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast import Agent, App, Reply
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit

URL, LIMIT, RUN_IDS = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    return Reply(text="done")


async def main() -> None:
    budget = Budget(Limit(runs=LIMIT, window=timedelta(days=1), per="all"))
    async with App([Agent(name="a", model=model)], URL, budget=budget) as app:
        for run_id in RUN_IDS:
            if run_id == "-":
                await asyncio.Event().wait()
            elif run_id.startswith("-"):
                result = await app.result(run_id[1:], through_waits=True)
                print(f"{run_id[1:]}:{result.output}", flush=True)
            else:
                try:
                    print(f"{run_id}:{(await app.run('a', 'go', run_id=run_id)).output}", flush=True)
                except BudgetExhausted:
                    print(f"{run_id}:waiting", flush=True)


asyncio.run(main())
