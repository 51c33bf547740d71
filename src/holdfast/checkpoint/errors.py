"""Errors of stored runs. `holdfast.errors` draws the whole tree."""

from holdfast.core.errors import RunError, RunLost, RunParked
from holdfast.errors import HoldfastError


class CheckpointError(HoldfastError):
    """A saved run could not be written, read or taken over."""


class StoreError(CheckpointError):
    """The store could not do the operation. Earlier acknowledged writes are safe."""


class StoreUnavailable(StoreError):
    """The store did not answer: a lost connection, a locked file. The same call may succeed later."""


class StoreFull(StoreError):
    """The store has no space left. Free space, then save again: no saved data is lost."""


class StorePermissionError(StoreError):
    """The store cannot be read or written: permissions, or a read-only file system."""


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
    """Another worker owns this run now. Stop executing it; do not retry the write."""

    def __init__(self, run_id: str, held: int, current: int | None) -> None:
        now = "the run is removed or terminal" if current is None else f"it was superseded by {current}"
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
    """A run with this id is in the store, and it has another agent, prompt or inputs."""

    def __init__(self, run_id: str, agent_name: str) -> None:
        super().__init__(
            f"run {run_id} exists with another agent, prompt or inputs (its agent: {agent_name}): choose another id"
        )
        self.run_id, self.agent_name = run_id, agent_name


class RunNotFound(CheckpointError):
    """No run with this id is in the store: it never was, or it ended and was removed."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id} in this store: it never was, or it ended and was removed")
        self.run_id = run_id


class RunNotClaimable(CheckpointError):
    """The status of the run does not allow this claim."""

    def __init__(self, run_id: str, status: str, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"run {run_id} is {status}{why} and cannot be claimed as it is")
        self.run_id, self.status, self.reason = run_id, status, reason


class RunEnded(CheckpointError):
    """The run is done, failed or cancelled: it reads no more mail."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run {run_id} is {status} and reads no more mail: start another run")
        self.run_id, self.status = run_id, status


class ConversationClosed(RunEnded):
    """The conversation has ended: it was closed, or cancelled."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)
        self.args = (f"conversation {run_id} is {status} and takes no more messages: begin one with another key",)


class TurnConflict(CheckpointError):
    """Another message was sent with this id. Nothing was sent."""

    def __init__(self, run_id: str, turn_id: str) -> None:
        super().__init__(f"conversation {run_id}: another message has the id {turn_id}: choose another id")
        self.run_id, self.turn_id = run_id, turn_id


class UnreadMail(CheckpointError):
    """The run has mail that it has to read first. Nothing was written, and the claim is still held."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has unread mail: read it before the run ends or waits")
        self.run_id = run_id


class InvalidCursor(CheckpointError):
    """The cursor is not one that this store has returned."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor!r:.80} is not a cursor of this store: start again without one")
        self.cursor = cursor


class RunDamaged(CheckpointError):
    """The stored run is corrupt. It was left unchanged."""

    def __init__(self, run_id: str, detail: str) -> None:
        super().__init__(f"run {run_id} is damaged and was left unchanged: {detail}")
        self.run_id, self.detail = run_id, detail


class UnknownVersion(CheckpointError):
    """A newer holdfast wrote this run. Upgrade holdfast; nothing was changed."""

    def __init__(self, run_id: str, found: int, known: int) -> None:
        super().__init__(
            f"run {run_id} has format version {found}, this holdfast knows up to {known}: upgrade holdfast to resume it"
        )
        self.run_id, self.found, self.known = run_id, found, known


class RecordDecodeError(CheckpointError):
    """A stored record cannot be decoded. It was left unchanged."""


class TranscriptTooLarge(CheckpointError, RunParked):
    """The transcript would exceed `max_transcript_bytes`. The last save is still there."""

    def __init__(self, run_id: str, size: int, cap: int) -> None:
        detail = f"run {run_id}: its transcript of {size} bytes exceeds {cap}: compact it or raise max_transcript_bytes"
        RunParked.__init__(self, "size", detail)
        self.run_id, self.size, self.cap = run_id, size, cap
