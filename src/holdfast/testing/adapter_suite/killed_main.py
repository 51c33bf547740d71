"""Processes that run an agent of the suite until they are killed: `python -m ... DRIVER FOLDER POINT...`.

There is one for each point, forked after the framework was imported, with the store `FOLDER/POINT/runs.db`. It writes
its process id to the standard output when the run is at the point, and stays there.
"""

import asyncio
import os
import sys
from contextlib import aclosing
from pathlib import Path

from holdfast.app import App
from holdfast.core.run.run_events import ToolReturned
from holdfast.testing.adapter_suite.script import AdapterDriver, CallLog, import_driver, make_script

RUN = "killed"


async def run_until_killed(driver: AdapterDriver, store: str, point: str) -> None:
    log = CallLog()
    agent = driver.make_agent(make_script(log))
    async with App([agent], store) as app:

        async def stay(reached: str) -> None:
            if reached != point:
                return
            if point.startswith("look"):
                await _wait_for_result(app, "c1")
            os.write(sys.stdout.fileno(), b"%d\n" % os.getpid())  # in one piece: the processes share the pipe
            await asyncio.Event().wait()

        log.reach = stay
        await app.run(agent, "go", run_id=RUN)


async def _wait_for_result(app: App, call_id: str) -> None:
    """Wait until the result of another call of the batch is in the store."""
    async with aclosing(app.events(RUN)) as events:
        async for event in events:
            if isinstance(event, ToolReturned) and event.call_id == call_id:
                return


def main(driver_path: str, folder: str, *points: str) -> None:
    driver = import_driver(driver_path)
    processes = []
    for point in points:
        store = Path(folder) / point
        store.mkdir()
        process = os.fork()
        if process == 0:
            asyncio.run(run_until_killed(driver, f"sqlite:{store / 'runs.db'}", point))
            os._exit(0)
        processes.append(process)
    for process in processes:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
