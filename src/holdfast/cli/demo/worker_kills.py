"""The worker processes of `holdfast demo --ui`: one is killed every now and then, and the page shows what followed."""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from string import ascii_uppercase

from holdfast.app import App
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.cli.demo.sample_fleet import INCIDENT_AGENT, build_fleet
from holdfast.core.errors import RunError
from holdfast.root_error import HoldfastError
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.web.kill_switch import KillSwitch

#: Seconds between two kills.
KILL_INTERVAL = 30.0
_WORKERS = 2
_PROMPT = "Compare the durability guarantees of five workflow engines"
_POLL = timedelta(milliseconds=20)
#: How long another worker may take, on a busy machine, before the report says that none has.
_RESUME_TIMEOUT = timedelta(seconds=20)


class KilledFleet:
    """Two worker processes. The one that executes a research run is killed repeatedly, and replaced."""

    def __init__(self, app: App, store_url: str, kill_interval: float = KILL_INTERVAL) -> None:
        self._app, self._store_url, self._kill_interval = app, store_url, kill_interval
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._started = count()
        #: A visitor need not wait for the next kill.
        self.switch = KillSwitch()

    @property
    def _store(self) -> RunStore:
        return self._app.open_store

    async def run(self) -> None:
        """Start the workers, kill one at each interval, and report it. Ends all of them when it is cancelled."""
        try:
            for _ in range(_WORKERS):
                await self._start_worker()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_researching())
                tasks.create_task(self._keep_killing())
        finally:
            await asyncio.gather(*map(self._stop_worker, self._processes.values()))

    async def _start_worker(self) -> None:
        number = next(self._started)
        letter, lap = ascii_uppercase[number % 26], number // 26
        self._processes[f"{letter}{lap or ''}"] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.cli.demo.worker_kills",
            self._store_url,
            stdin=asyncio.subprocess.PIPE,
            # Ctrl-C is for the page, which then closes the pipe.
            start_new_session=True,
        )

    async def _stop_worker(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None  # it is a pipe
        process.stdin.close()
        await process.wait()

    async def _keep_researching(self) -> None:
        """Always have one long run."""
        for number in count(1):
            run_id = f"research-{number:03}"
            await self._app.submit("researcher", _PROMPT, run_id=run_id, caller_id="bob")
            with suppress(RunError):  # a visitor has cancelled it
                await self._app.result(run_id)

    async def _keep_killing(self) -> None:
        for number in count(1):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._kill_interval):
                    await self.switch.asked.wait()
            report = await self._kill_worker()
            self.switch.asked.clear()
            self.switch.report = report or self.switch.report
            await self._start_worker()
            if report:
                await self._app.submit(INCIDENT_AGENT, report, run_id=f"incident-{number:03}", caller_id="demo")

    async def _kill_worker(self) -> str:
        """Kill a worker that executes a run. Return what happened then; empty if the run had just ended."""
        with self._app.changes.listen() as changed:
            while (victim := await self._find_victim()) is None:
                await changed.wait()
            record, worker = victim
            process = self._processes.pop(worker)
            killed_at = time.monotonic()
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
            while time.monotonic() - killed_at < _RESUME_TIMEOUT.total_seconds():
                now = await get_record(self._store, record.run_id)
                if now.is_terminal:
                    return ""
                if now.owner_alive and now.owner != record.owner:
                    step = summarize_run(now).steps + 1
                    after = time.monotonic() - killed_at
                    other = await self._name_owner(now)
                    return (
                        f"worker {worker} died, "
                        f"{record.run_id} resumed at step {step} on worker {other} in {after:.1f} s"
                    )
                await changed.wait(_POLL)
        return f"worker {worker} died, {record.run_id} waits for a worker"

    async def _find_victim(self) -> tuple[RunRecord, str] | None:
        """Return a research run and the name of its worker."""
        wanted = RunFilter(statuses=frozenset({RunStatus.RUNNING}), agent_name="researcher")
        for record in (await self._store.list_page(wanted, limit=10)).records:
            if record.owner_alive and (worker := await self._name_owner(record)) is not None:
                return record, worker
        return None

    async def _name_owner(self, record: RunRecord) -> str | None:
        """Return the name of the worker that owns the run; `None` if it is none of ours."""
        pids = {each.worker.worker_id: each.worker.process.pid for each in (await self._store.read_fleet()).workers}
        pid = pids.get(record.owner or "")
        return next((name for name, process in self._processes.items() if process.pid == pid), None)


async def work(store_url: str) -> None:
    """Be a worker of the demo until stdin ends: with the page's process, however that ended."""
    async with build_fleet(store_url, take_runs=True):
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, HoldfastError):
        asyncio.run(work(sys.argv[1]))
