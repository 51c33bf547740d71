"""One prompt to many models at the same time, each as a durable run."""

from holdfast.fanout.cells import FanoutSettings, Variant
from holdfast.fanout.checkpoint_file import Checkpoint, IncrementalSaver, build, clear, load, save
from holdfast.fanout.errors import CorruptCheckpoint, FanoutError, PathRefused, WorkspaceChanged
from holdfast.fanout.fanout import Fanout
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.responses import ModelResponse, PartialResponse, ResponseSnapshot, read_responses
from holdfast.fanout.workspace import Workspace, WriteSnapshot

__all__ = [
    "Checkpoint",
    "CorruptCheckpoint",
    "Fanout",
    "FanoutError",
    "FanoutSettings",
    "IncrementalSaver",
    "ModelResponse",
    "Overlay",
    "PartialResponse",
    "PathRefused",
    "ResponseSnapshot",
    "Variant",
    "Workspace",
    "WorkspaceChanged",
    "WriteSnapshot",
    "build",
    "clear",
    "load",
    "read_responses",
    "save",
]
