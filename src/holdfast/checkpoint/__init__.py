"""Durable runs: the contracts of stores and checkpointers, and what they keep."""

from holdfast.checkpoint.checkpointer import NullCheckpointer
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import Shutdown
from holdfast.core.ports import Checkpointer, CheckpointerFactory, Resumption
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd, classify_error

__all__ = [
    "AttemptEnd",
    "Checkpointer",
    "CheckpointerFactory",
    "NullCheckpointer",
    "Resumption",
    "RunFilter",
    "RunRecord",
    "RunState",
    "RunStatus",
    "RunStore",
    "Shutdown",
    "StoreCheckpoints",
    "classify_error",
]
