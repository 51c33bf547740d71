"""Absurd: a task with a step for each effect and `await_event` for the approval, on PostgreSQL."""

import asyncio
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from bench.scorecard.programs.command import Place, main, wait_for_end
from bench.scorecard.programs.step_program import run_program


def open_client(place: Place) -> AsyncAbsurd:
    absurd = AsyncAbsurd(place.postgres)

    @absurd.register_task("order")
    async def execute(params: Any, context: Any) -> str:
        async def wait_for_approval() -> object:
            return await context.await_event(f"approval of {place.run_id}")

        return await run_program(place.ledger, context.step, wait_for_approval)

    return absurd


async def submit(place: Place) -> str:
    async with await psycopg.AsyncConnection.connect(place.postgres, autocommit=True) as connection:
        if not await (await connection.execute("select 1 from pg_namespace where nspname = 'absurd'")).fetchone():
            await connection.execute(BUNDLED_SCHEMA_SQL.encode())
    absurd = open_client(place)
    await absurd.create_queue()
    task = await absurd.spawn("order", {}, idempotency_key=place.run_id)
    worker = asyncio.create_task(absurd.start_worker(claim_timeout=10))
    reader = AsyncAbsurd(place.postgres)
    result = await reader.await_task_result(task["task_id"])
    absurd.stop_worker()
    await worker
    return str(result.result)


async def work(place: Place) -> None:
    absurd = open_client(place)
    worker = asyncio.create_task(absurd.start_worker(claim_timeout=10))
    await wait_for_end(place.ledger)
    absurd.stop_worker()
    await worker


async def approve(place: Place) -> None:
    while "model-1" not in place.ledger.read():
        await asyncio.sleep(0.05)
    absurd = AsyncAbsurd(place.postgres)
    for _ in range(2):
        await absurd.emit_event(f"approval of {place.run_id}", True, "default")


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
