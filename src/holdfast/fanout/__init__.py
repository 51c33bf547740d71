"""One prompt, many models, and nothing done twice."""

from holdfast.fanout.cells import Variant
from holdfast.fanout.checkpoint import FanoutCheckpoint, build, clear, load, save
from holdfast.fanout.errors import (
    AnotherFanout,
    CorruptCheckpoint,
    FanoutBusy,
    FanoutError,
    FolderChanged,
    PathRefused,
)
from holdfast.fanout.fanout import Fanout
from holdfast.fanout.folder import WorkFolder
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.saver import Flushed, IncrementalSaver
from holdfast.fanout.snapshot import ModelResponse, PartialResponse, ProposedWrite, Snapshot

__all__ = [
    "AnotherFanout",
    "CorruptCheckpoint",
    "Fanout",
    "FanoutBusy",
    "FanoutCheckpoint",
    "FanoutError",
    "Flushed",
    "FolderChanged",
    "IncrementalSaver",
    "ModelResponse",
    "Overlay",
    "PartialResponse",
    "PathRefused",
    "ProposedWrite",
    "Snapshot",
    "Variant",
    "WorkFolder",
    "build",
    "clear",
    "load",
    "save",
]
