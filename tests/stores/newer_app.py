"""An App of any release: `python newer_app.py URL FOLDER`, with that release on the path. Uses no other code.

It opens the store, which migrates it, and writes a file `migrated` into the folder. When there is a file `stop`, it
submits a run, and waits until another process has executed all of them. Prints the outputs as JSON.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply
from holdfast.core import Message, ToolSchema

URL, FOLDER = sys.argv[1], Path(sys.argv[2])


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    raise AssertionError("this App takes no runs")


async def main() -> None:
    async with App([Agent(name="clerk", model=model)], URL, worker=False) as app:
        (FOLDER / "migrated").touch()
        while not (FOLDER / "stop").exists():  # noqa: ASYNC110  the test has no other way to reach this process
            await asyncio.sleep(0.02)
        await app.submit("clerk", "Charge.", run_id="new")
        run_ids = [*(f"old-{number}" for number in range(4)), "new"]
        print(json.dumps({run_id: (await app.result(run_id)).output for run_id in run_ids}))


if __name__ == "__main__":
    asyncio.run(main())
