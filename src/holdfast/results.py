"""What `App` returns about runs and conversations. `Result` itself is in `holdfast`."""

from holdfast.checkpoint.record import RunStatus
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.operations.conversations import Conversation, Turn
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery
from holdfast.runtime.run_map import BatchItem

__all__ = [
    "BatchItem",
    "Conversation",
    "RunDetails",
    "RunList",
    "RunQuery",
    "RunStatus",
    "RunSummary",
    "Turn",
    "WaitingCall",
]
