"""Errors of stored runs. `holdfast.root_error` draws the whole tree."""

from holdfast.core.errors import RunError, RunLost, RunParked
from holdfast.root_error import HoldfastError


class CheckpointError(HoldfastError):
    """A saved run could not be written, read or taken over.

    What to do: The subclass and the message say which operation failed. Nothing else of the run was changed.
    """


class StoreError(CheckpointError):
    """The store could not do the operation. Earlier acknowledged writes are safe.

    What to do: Act on the message, such as a wrong URL or the driver's error. The call can then be retried.
    """


class StoreUnavailable(StoreError):
    """The store did not answer: a lost connection, or a locked file.

    What to do: Retry the call later.
    """


class StoreFull(StoreError):
    """The store has no space left. Saved data is safe.

    What to do: Free space, then retry the call.
    """


class StorePermissionError(StoreError):
    """The store cannot be read or written: permissions, or a read-only file system.

    What to do: Give the user of this process the right to read and write the file and its folder, or the database.
    """


class StoreReplaced(StoreError):
    """The file of the store was deleted, moved or replaced while it was open. Nothing was written.

    Writes acknowledged in the last second before that may be in the old file only.

    What to do: Put the old file back, with its `-wal` and `-shm`, or restart every process that uses the store.
    """


class StoreClosed(StoreError):
    """The store was closed, or never opened. Nothing was written.

    What to do: Use the App or the store inside `async with`, and end your tasks before it closes.
    """


class SchemaTooNew(StoreError):
    """A newer holdfast wrote this store. Nothing was changed.

    What to do: Upgrade holdfast.
    """

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} has schema version {found}, this holdfast knows up to {known}: upgrade holdfast to open it"
        )
        self.found = found
        self.known = known


class SchemaTooOld(StorePermissionError):
    """This holdfast needs a newer schema than the store has, and its user may not migrate it. Nothing was changed.

    What to do: Run `holdfast migrate` as the owner of the schema, then start this process again.
    """

    def __init__(self, where: str, found: int, known: int) -> None:
        state = f"has schema version {found}" if found else "has no tables"
        super().__init__(
            f"{where} {state}, this holdfast needs version {known}, and its user may not migrate it:"
            " run `holdfast migrate` as the owner"
        )
        self.found, self.known = found, known


class ClaimLost(StoreError, RunLost):
    """Another worker owns this run now. Nothing was written.

    What to do: Stop executing the run; do not repeat the write.
    """

    def __init__(self, run_id: str, held: int, current: int | None) -> None:
        now = "the run is removed or terminal" if current is None else f"it was superseded by {current}"
        super().__init__(f"run {run_id}: claim {held} is no longer valid: {now}")
        self.run_id = run_id
        self.held = held
        self.current = current


class RunBusy(CheckpointError):
    """A live worker owns this run.

    What to do: Wait until the run ends, or `cancel` it.
    """

    def __init__(self, run_id: str, owner: str) -> None:
        super().__init__(f"run {run_id} is owned by the live worker {owner}: wait for it, or cancel the run")
        self.run_id = run_id
        self.owner = owner


class RunExists(CheckpointError, RunError):
    """The store already has a run with this id.

    What to do: Use another id, or attach to the run with `App.run` or `App.result`.
    """

    is_elsewhere = True

    def __init__(
        self, run_id: str, advice: str = "choose another id, or resume that run", *, begin: bytes | None = None
    ) -> None:
        super().__init__(f"run {run_id} already exists: {advice}")
        self.run_id = run_id
        #: Its first entry, if the run was to be created with a connection of the user: it may not be committed yet.
        self.begin = begin


class RunConflict(CheckpointError):
    """The store already has a run with this id, with another agent, prompt or inputs.

    What to do: Use another run id, or repeat the call with the agent, prompt and inputs of the first one.
    """

    def __init__(self, run_id: str, agent_name: str) -> None:
        super().__init__(
            f"run {run_id} exists with another agent, prompt or inputs (its agent: {agent_name}): choose another id"
        )
        self.run_id = run_id
        self.agent_name = agent_name


class RunNotFound(CheckpointError):
    """No run with this id is in the store: the id is wrong, or the run ended and was removed.

    What to do: Check the id and the store (`HOLDFAST_STORE`). `CheckpointSettings.retention` says how long ended runs
    stay.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run {run_id} in this store: the id is wrong, or the run ended and was removed")
        self.run_id = run_id


class RunNotClaimable(CheckpointError):
    """The status of the run does not allow this claim.

    What to do: Look at its status with `holdfast show`. A parked run is unparked, a failed one resumed by hand.
    """

    def __init__(self, run_id: str, status: str, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"run {run_id} is {status}{why} and cannot be claimed as it is")
        self.run_id = run_id
        self.status = status
        self.reason = reason


class LimitReached(RunNotClaimable):
    """A concurrency limit is reached: no further run of this agent, or with this key, may execute now.

    What to do: Wait until one of them ends or waits, or raise the limit with `holdfast limits set`.
    """

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status, "a concurrency limit is reached")


class RunEnded(CheckpointError):
    """The run is done, failed or cancelled: it reads no more mail.

    What to do: Start a new run, or `resume` a failed or cancelled one by hand.
    """

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(f"run {run_id} is {status} and reads no more mail: start another run")
        self.run_id = run_id
        self.status = status


class ConversationClosed(RunEnded):
    """The conversation has ended: it was closed, or cancelled.

    What to do: Begin a conversation with another key, or `fork` this one.
    """

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)
        message = f"conversation {run_id} is {status} and takes no more messages: begin one with another key"
        self.args: tuple[str] = (message,)


class TurnConflict(CheckpointError):
    """Another message was sent with this id. Nothing was sent.

    What to do: Use another id for another message.
    """

    def __init__(self, run_id: str, turn_id: str) -> None:
        super().__init__(f"conversation {run_id}: another message has the id {turn_id}: choose another id")
        self.run_id = run_id
        self.turn_id = turn_id


class TurnNotFound(CheckpointError):
    """The conversation has no message with this id.

    What to do: Use an id that `send` or `post` of this conversation has returned.
    """

    def __init__(self, run_id: str, turn_id: str) -> None:
        super().__init__(f"conversation {run_id} has no message {turn_id!r:.80}")
        self.run_id = run_id
        self.turn_id = turn_id


class UnreadMail(CheckpointError):
    """The run has mail that it has to read first. Nothing was written, and the claim is still held.

    What to do: Nothing, unless you have written a store or a checkpointer: the run is resumed and reads its mail.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} has unread mail: read it before you write this")
        self.run_id = run_id


class InvalidCursor(CheckpointError):
    """The cursor is not one that this store has returned.

    What to do: Start again with the first page, without a cursor.
    """

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor!r:.80} is not a cursor of this store: start again without one")
        self.cursor = cursor


class RunDamaged(CheckpointError):
    """The stored run is corrupt. It was left unchanged.

    What to do: Restore the store from a backup, or remove the run with `holdfast rm --force`. Other runs are not
    affected.
    """

    def __init__(self, run_id: str, detail: str) -> None:
        super().__init__(f"run {run_id} is damaged and was left unchanged: {detail}")
        self.run_id = run_id
        self.detail = detail


class UnknownVersion(CheckpointError):
    """A newer holdfast wrote this run. Nothing was changed.

    What to do: Upgrade holdfast.
    """

    def __init__(self, run_id: str, found: int, known: int) -> None:
        super().__init__(
            f"run {run_id} has format version {found}, this holdfast knows up to {known}: upgrade holdfast to resume it"
        )
        self.run_id = run_id
        self.found = found
        self.known = known


class RecordDecodeError(CheckpointError):
    """A stored record cannot be decoded. It was left unchanged.

    What to do: Restore the run from a backup, or remove it with `holdfast rm`. `holdfast doctor` lists all such runs.
    """


class TranscriptTooLarge(CheckpointError, RunParked):
    """The transcript would exceed `max_transcript_bytes`. The last save is still there.

    What to do: Raise `max_transcript_bytes`, compact the history (`Agent(compact=...)`), then `unpark` the run.
    """

    def __init__(self, run_id: str, size: int, cap: int) -> None:
        detail = f"run {run_id}: its transcript of {size} bytes exceeds {cap}: compact it or raise max_transcript_bytes"
        RunParked.__init__(self, "size", detail)
        self.run_id = run_id
        self.size = size
        self.cap = cap
