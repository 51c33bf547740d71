"""Measures the web page on the server, in processor time: `python -m bench.parts.web_page`."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from tests.web.ui.journals import store_long_run

from holdfast.app import App
from holdfast.checkpoint.codec import Begin, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.store import RunStore
from holdfast.config import WorkerSettings
from holdfast.core.run.info import RunInfo
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui

RUNS, STEPS = 200_000, 10_000
_BATCH, _REPEATS = 2_000, 7

#: The pages, and the milliseconds that each may take.
PAGES = {
    "/": 100,
    "/?status=queued": 100,
    "/?q=agent:agent3": 100,
    "/?q=label.tenant:t3": 100,
    "/inbox": 100,
    "/runs/long": 200,
    "/runs/long?step=5000": None,
    "/runs/long?q=thought+9999": None,
    "/fleet": None,
}


async def main() -> None:
    """Fill a store and print the median of each page."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:{Path(folder) / 'runs.db'}"
        async with App([], store, worker=WorkerSettings(take_runs=False, handle_signals=False)) as app:
            assert app.store is not None
            for start in range(0, RUNS, _BATCH):
                await asyncio.gather(*(_create(app.store, number) for number in range(start, start + _BATCH)))
            await store_long_run(app.store, "long", STEPS, size=800)
            transport = httpx.ASGITransport(
                make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL), client=("127.0.0.1", 1)
            )
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                for path, limit in PAGES.items():
                    took = await _measure(client, path)
                    print(f"{path:28} {took:6.1f} ms" + (f" of {limit}" if limit else ""))


async def _measure(client: httpx.AsyncClient, path: str) -> float:
    times: list[float] = []
    for _ in range(_REPEATS):
        start = time.process_time()
        response = await client.get(path)
        times.append(1000 * (time.process_time() - start))
        assert response.status_code == 200
    return statistics.median(times)


async def _create(store: RunStore, number: int) -> None:
    info = RunInfo(
        run_id=f"run-{number:06}",
        agent_name=f"agent{number % 7}",
        caller_id=f"caller{number % 50}",
        prompt="Compare the guarantees of five engines. " * 3,
        labels={"tenant": f"t{number % 20}"},
    )
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode(Begin(info=info)))
    await store.create(
        NewRun(
            run_id=info.run_id,
            agent_name=info.agent_name,
            caller_id=info.caller_id,
            labels=info.labels,
            info=encode(info.summarize()),
            progress=encode(Progress()),
            entries=[begin],
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
