"""A pydantic-ai agent with the StepPersistence of pydantic-ai-harness, on SQLite."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from bench.systems.footprint import footprint
from bench.systems.protocol import Job, Result, main
from bench.systems.pydantic_ai_agent import BenchAgent
from pydantic_ai import UsageLimits
from pydantic_ai_harness.step_persistence import SqliteStepStore, StepPersistence

CAVEATS = {
    "all": "It records events, effects and snapshots, and resumes after a whole step by hand: no claims, no recovery. "
    "The frontier before the tools is captured, so that no reply is lost. SQLite is in WAL mode, which is not its "
    "default.",
}


async def agent_run(job: Job) -> Result:
    path = Path(job["folder"]) / "steps.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    store = SqliteStepStore(database=path)
    measured = BenchAgent(job, StepPersistence(store=store, capture_frontier=True))
    before, began = footprint(job), time.perf_counter()
    await measured.agent.run("go", usage_limits=UsageLimits(request_limit=None))
    return measured.describe_run(before, began)


if __name__ == "__main__":
    main({"w5": agent_run}, packages=["pydantic-ai-harness", "pydantic-ai-slim"], caveats=CAVEATS)
