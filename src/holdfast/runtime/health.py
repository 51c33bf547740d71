"""Whether this process can take runs: for the probes of a supervisor."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import Clock
from holdfast.runtime.worker import Worker

#: How long the store has to answer. Kubernetes by default waits for one second, a load balancer longer.
STORE_TIMEOUT = timedelta(seconds=2)


class HealthCheck:
    """Looks at a worker and its store."""

    def __init__(self, store: CheckpointStore, worker: Worker, clock: Clock) -> None:
        self._store, self._worker, self._clock = store, worker, clock
        #: The question that the store has not answered yet. There is one at a time, however often this is asked.
        self._asking: asyncio.Task[Sequence[str]] | None = None

    async def find_problem(self) -> str:
        """Return why the worker takes no runs now; empty if it can take some."""
        if not self._worker.is_taking_runs:
            return "draining: this worker takes no more runs"
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_store())
        asking, timeout = self._asking, asyncio.create_task(self._clock.sleep(STORE_TIMEOUT))
        try:
            await asyncio.wait({asking, timeout}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timeout.cancel()
        if not asking.done():
            return f"the store has not answered within {STORE_TIMEOUT.total_seconds():g} seconds"
        self._asking = None
        error = None if asking.cancelled() else asking.exception()
        return "" if error is None else f"the store fails: {error}"

    async def _ask_store(self) -> Sequence[str]:
        try:
            return await self._store.pending_cancellations(self._worker.worker_id)
        except StoreError:
            raise
        except Exception as exc:  # a store of a user's own may raise anything
            raise StoreError(f"{type(exc).__name__}: {exc}") from exc

    async def close(self) -> None:
        """Wait for no answer any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
