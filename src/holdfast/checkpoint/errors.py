"""What can go wrong with saved runs. The whole tree is drawn in `holdfast.errors`."""

from holdfast.core.errors import RunError, RunLost, RunParked
from holdfast.errors import HoldfastError


class CheckpointError(HoldfastError):
    """A saved run could not be written, read or taken over."""


class StoreError(CheckpointError):
    """The store could not do what was asked. What it had acknowledged before is still safe."""


class StoreUnavailable(StoreError):
    """The store did not answer: a lost connection, a locked file. The same call may succeed later."""


class StoreFull(StoreError):
    """There is no room left to write. Free space, then save again: nothing that was saved is lost."""


class StorePermissionError(StoreError):
    """The store may not be written or read: permissions, or a read-only file system."""


class StoreClosed(StoreError):
    """The store was closed, or never opened. Nothing was written."""


class SchemaTooNew(StoreError):
    """A newer holdfast wrote this store. Upgrade holdfast; nothing was changed."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} has schema version {found}, this holdfast knows up to {known}: upgrade holdfast to open it"
        )
        self.found, self.known = found, known


class ClaimLost(StoreError, RunLost):
    """Another worker owns this run now. Stop driving it; do not retry the write."""

    def __init__(self, run_id: str, held: int, current: int | None) -> None:
        now = "the run is gone or over" if current is None else f"it was superseded by {current}"
        super().__init__(f"run {run_id}: claim {held} is not valid any more, {now}")
        self.run_id, self.held, self.current = run_id, held, current


class RunBusy(CheckpointError):
    """A live worker owns this run. Wait for it, or ask it to stop with a cancel."""

    def __init__(self, run_id: str, owner: str) -> None:
        super().__init__(f"run {run_id} is owned by the live worker {owner}: wait for it, or cancel the run")
        self.run_id, self.owner = run_id, owner


class RunExists(CheckpointError, RunError):
    """A run with this id is in the store already."""

    def __init__(self, run_id: str, advice: str = "choose another id, or resume that run") -> None:
        super().__init__(f"run {run_id} exists already: {advice}")
        self.run_id = run_id


class RunConflict(CheckpointError):
    """A run with this id is in the store, and it is another one."""

    def __init__(self, run_id: str, agent_name: str) -> None:
        super().__init__(
            f"run {run_id} exists with another agent or prompt (agent {agent_name}): choose another id for a new run"
        )
        self.run_id, self.agent_name = run_id, agent_name


class RunNotFound(CheckpointError):
    """No run with this id is in the store: it never was, or it is over and was removed."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id} in this store: it never was, or it is over and was removed")
        self.run_id = run_id


class RunNotClaimable(CheckpointError):
    """The run is in a state from which this claim may not take it."""

    def __init__(self, run_id: str, status: str, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"run {run_id} is {status}{why} and cannot be claimed as it is")
        self.run_id, self.status, self.reason = run_id, status, reason


class RunDamaged(CheckpointError):
    """What is stored of this run is not what was written. It was left untouched."""

    def __init__(self, run_id: str, detail: str) -> None:
        super().__init__(f"run {run_id} is damaged and was left untouched: {detail}")
        self.run_id, self.detail = run_id, detail


class UnknownVersion(CheckpointError):
    """A newer holdfast wrote this run. Upgrade holdfast; nothing was changed."""

    def __init__(self, run_id: str, found: int, known: int) -> None:
        super().__init__(
            f"run {run_id} has format version {found}, this holdfast knows up to {known}: upgrade holdfast to resume it"
        )
        self.run_id, self.found, self.known = run_id, found, known


class RecordDecodeError(CheckpointError):
    """A stored record has not the shape this code expects. It was left untouched."""


class TranscriptTooLarge(CheckpointError, RunParked):
    """The run's transcript would pass the cap the host set. What was saved before is still there."""

    def __init__(self, run_id: str, size: int, cap: int) -> None:
        detail = f"run {run_id}: its transcript of {size} bytes exceeds {cap}: compact it or raise max_transcript_bytes"
        RunParked.__init__(self, "size", detail)
        self.run_id, self.size, self.cap = run_id, size, cap
