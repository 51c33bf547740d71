"""What `App` returns about runs and conversations. `Result` itself is in `holdfast`."""

from holdfast.checkpoint.record import RunStatus
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.batch import BatchItem
from holdfast.runtime.operations.conversations import Conversation, Turn
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery

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
