"""What is stored of a run and how it is saved: both store contracts, and what a host's own loop needs."""

from holdfast.checkpoint.checkpoint_store import CheckpointStore, MemoryCheckpointStore, RunCheckpoint
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.core.errors import Shutdown
from holdfast.core.ports import Checkpointer, CheckpointerFactory, Leave, NullCheckpointer, Resumption
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd, classify_error

__all__ = [
    "AttemptEnd",
    "CheckpointStore",
    "Checkpointer",
    "CheckpointerFactory",
    "Leave",
    "MemoryCheckpointStore",
    "NullCheckpointer",
    "Resumption",
    "RunCheckpoint",
    "RunFilter",
    "RunRecord",
    "RunState",
    "RunStatus",
    "RunStore",
    "Shutdown",
    "StoreCheckpoints",
    "classify_error",
    "get_record",
    "iter_runs",
]
