"""pgtask: a task with a step for each effect and a signal for the approval, on PostgreSQL."""

import asyncio
from urllib.parse import parse_qs, quote, urlsplit

from bench.scorecard.programs.command import Place, main, wait_for_end
from bench.scorecard.programs.step_program import run_program
from pgtask import Client, Task, TaskRegistry, Worker


def encode_host(url: str) -> str:
    """Return the URL with its Unix socket as the host, which is the only place where pgtask looks."""
    parts = urlsplit(url)
    socket = parse_qs(parts.query).get("host", [""])[0]
    return f"{parts.scheme}://{parts.username}@{quote(socket, safe='')}{parts.path}" if socket else url


def make_worker(place: Place) -> tuple[Worker, object]:
    registry = TaskRegistry()

    @registry.task("order")
    async def execute(task: Task, payload: None) -> str:
        async def wait_for_approval() -> object:
            return await task.wait_for_signal("approval", "approval")

        return await run_program(place.ledger, task.step, wait_for_approval)

    return Worker(encode_host(place.postgres), registry, lease_duration=10, poll_interval=1), execute


async def submit(place: Place) -> str:
    client = await Client.connect(encode_host(place.postgres))
    await client.migrate()
    worker, definition = make_worker(place)
    handle = await client.enqueue(definition.request(None, idempotency_key=place.run_id))  # type: ignore[attr-defined]
    (place.folder / f"task of {place.run_id}").write_text(handle.id)
    working = asyncio.create_task(worker.run())
    result = await handle.result()
    worker.shutdown()
    await working
    return str(result)


async def work(place: Place) -> None:
    worker, _ = make_worker(place)
    working = asyncio.create_task(worker.run())
    await wait_for_end(place.ledger)
    worker.shutdown()
    await working


async def approve(place: Place) -> None:
    while not (place.folder / f"task of {place.run_id}").exists():
        await asyncio.sleep(0.05)
    client = await Client.connect(encode_host(place.postgres))
    for _ in range(2):
        await client.emit_signal((place.folder / f"task of {place.run_id}").read_text(), "approval", True)


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
