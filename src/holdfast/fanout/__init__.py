"""One prompt to many models at the same time, each as a durable run."""

from holdfast.fanout.cells import FanoutSettings, Variant
from holdfast.fanout.checkpoint import FanoutCheckpoint, build, clear, load, save
from holdfast.fanout.errors import (
    CorruptCheckpoint,
    FanoutBusy,
    FanoutError,
    FanoutMismatch,
    PathRefused,
    WorkspaceChanged,
)
from holdfast.fanout.fanout import Fanout
from holdfast.fanout.finished import FinishedFanout, load_finished
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import IncrementalSaver, PendingFlush
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, ProposedWrite, Snapshot
from holdfast.fanout.workspace import Workspace
from holdfast.stores.shared import SharedStore

__all__ = [
    "CorruptCheckpoint",
    "Fanout",
    "FanoutBusy",
    "FanoutCheckpoint",
    "FanoutError",
    "FanoutMismatch",
    "FanoutSettings",
    "FinishedFanout",
    "IncrementalSaver",
    "ModelResponse",
    "Overlay",
    "PartialResponse",
    "PathRefused",
    "PendingFlush",
    "ProposedWrite",
    "SharedStore",
    "Snapshot",
    "Variant",
    "Workspace",
    "WorkspaceChanged",
    "build",
    "clear",
    "load",
    "load_finished",
    "save",
]
