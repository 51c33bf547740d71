"""StoreServices: the objects with which a client works on its store."""

from collections.abc import Mapping

from holdfast.checkpoint.claims import Claims
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.runtime.changes import ChangeListener, ChangeSignal
from holdfast.runtime.operations.mailing import Mailer
from holdfast.runtime.operations.requeueing import Requeuer
from holdfast.runtime.operations.submitting import Submitter
from holdfast.runtime.streams.hub import EventHub


class StoreServices:
    """Made with the client. They work while the store is open."""

    def __init__(
        self, store: RunStore, agents: Mapping[str, AgentSource], settings: CheckpointSettings, clock: Clock
    ) -> None:
        self.store = store
        self.checkpoints = StoreCheckpoints(store, settings=settings, clock=clock)
        self.changes = ChangeSignal(store, clock)
        self.hub = EventHub(self.checkpoints, self.changes, redacts=settings.redact is not None, clock=clock)
        self.mailer = Mailer(store, clock=clock)
        self.submitter = Submitter(self.checkpoints, clock)
        self.requeuer = Requeuer(self.checkpoints, agents)

    async def open(self) -> None:
        """Open the store without registering this process as a worker: `get_claims` does."""
        await self.store.open()
        self.start()

    def start(self) -> None:
        """Accept watchers and listeners. The store is open."""
        self.changes.open()
        self.hub.open()

    async def get_claims(self) -> Claims:
        """Return this process as a worker. The first call registers it."""
        await self.checkpoints.register()
        return self.checkpoints.claims

    async def stop(self) -> None:
        """End all streams and waits."""
        await self.hub.close()
        await self.changes.close()

    async def close(self) -> None:
        """End all streams and waits, deregister this process if it was registered, and close the store."""
        try:
            await self.stop()
        finally:
            await (self.checkpoints.close() if self.checkpoints.is_open else self.store.close())


class RunHost:
    """How a process serves the runs that it executes itself. This one executes none."""

    async def on_posted(self, run_id: str) -> None:
        """Give the run the mail that was posted to it."""

    async def advance(self, record: RunRecord, changed: ChangeListener) -> Exception | None:
        """Wait until the run may have changed. Returns the error of the run, if it was executed here and failed."""
        await changed.wait()
        return None
