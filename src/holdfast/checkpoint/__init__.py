"""Durable runs: the contracts of stores and checkpointers, and what they keep."""

from holdfast.checkpoint.checkpointer import NullCheckpointer
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import Shutdown
from holdfast.core.ports import Checkpointer, CheckpointerFactory, Resumption
from holdfast.core.run.result import classify_error
from holdfast.core.run.state import RunState

__all__ = [
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
