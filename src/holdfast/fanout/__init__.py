"""One prompt, many models, and nothing done twice."""

from holdfast.fanout.cells import Variant
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
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import IncrementalSaver, PendingFlush
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, ProposedWrite, Snapshot
from holdfast.fanout.workspace import Workspace

__all__ = [
    "CorruptCheckpoint",
    "Fanout",
    "FanoutBusy",
    "FanoutCheckpoint",
    "FanoutError",
    "FanoutMismatch",
    "IncrementalSaver",
    "ModelResponse",
    "Overlay",
    "PartialResponse",
    "PathRefused",
    "PendingFlush",
    "ProposedWrite",
    "Snapshot",
    "Variant",
    "Workspace",
    "WorkspaceChanged",
    "build",
    "clear",
    "load",
    "save",
]
