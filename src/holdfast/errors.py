"""Every error that holdfast raises, in one place. Catch these; the modules below define them.

HoldfastError
├── RunError                    errors of a run
│   ├── RunAlreadyRunning, NotDurable, InvalidReply, PayloadError
│   ├── DefinitionError         a wrong argument: InvalidRunId, UnknownTool, AmbiguousStep, PersonaError, SkillError
│   ├── BoundExceeded           StepsExceeded, RuntimeExceeded, RepeatedToolCalls
│   ├── ToolFailed, ToolTimeout, RunKilled, RunCancelled
│   ├── StepFailed              of a workflow: StepTimeout, StepDenied, StepCancelled
│   ├── RunFailed               of a turn: TurnFailed
│   ├── TurnInterrupted, ConversationBusy
│   ├── RunWaiting              the run waits for a time or for mail: BudgetExhausted
│   ├── RunParked               the run waits for a person or a condition: TranscriptTooLarge
│   ├── RunInterrupted          the run stopped and is resumed later: Shutdown, ShuttingDown, MissingDefinition,
│   │                           ProcessExit, SaveFailed, ModelUnavailable, MailArrived, BudgetUnavailable,
│   │                           RateLimitsUnavailable, DefinitionsUnavailable
│   └── RunLost                 another worker owns the run: ClaimLost
├── CheckpointError             errors of stored runs
│   ├── StoreError              StoreUnavailable, StoreFull, StorePermissionError, SchemaTooOld, StoreClosed,
│   │                           SchemaTooNew, StoreReplaced, ClaimLost
│   ├── RunBusy, RunExists (is a RunError too), RunConflict, RunNotFound, RunDamaged
│   ├── RunNotClaimable         LimitReached
│   ├── RunEnded                of a conversation: ConversationClosed
│   ├── NotWaiting, AlreadyAnswered, TurnConflict, TurnNotFound, UnreadMail, InvalidCursor
│   └── UnknownVersion, RecordDecodeError, TranscriptTooLarge
├── TablesError                 errors of the batteries' tables: TablesUnavailable
├── AuditError, BudgetError, CriticError, RateLimitError
├── ScheduleError               JobExists, JobNotFound
├── DefinitionStoreError        DefinitionNotFound, DefinitionsUnavailable, MalformedDefinition
├── FanoutError                 CorruptCheckpoint, PathRefused, WorkspaceChanged
├── RequestError                a refused HTTP request: NotAuthenticated, InvalidToken, Forbidden
└── AddressInUse, ReaderTooSlow

An extra has errors of its own: `holdfast.client.ServerUnavailable`, `holdfast.testing.CrashTestFailed`, and requests
that `holdfast.web` refuses.
"""

from holdfast.batteries.audit.audit import AuditError
from holdfast.batteries.budget.budget import BudgetError, BudgetUnavailable
from holdfast.batteries.critic.watchdog import CriticError
from holdfast.batteries.definitions.versions import (
    DefinitionNotFound,
    DefinitionStoreError,
    DefinitionsUnavailable,
    MalformedDefinition,
)
from holdfast.batteries.persona import PersonaError
from holdfast.batteries.rate_limits.windows import RateLimitError, RateLimitsUnavailable
from holdfast.batteries.schedule.jobs import JobExists, JobNotFound, ScheduleError
from holdfast.batteries.skill import SkillError
from holdfast.checkpoint.errors import (
    CheckpointError,
    ClaimLost,
    ConversationClosed,
    InvalidCursor,
    LimitReached,
    RecordDecodeError,
    RunBusy,
    RunConflict,
    RunDamaged,
    RunEnded,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    SchemaTooNew,
    SchemaTooOld,
    StoreClosed,
    StoreError,
    StoreFull,
    StorePermissionError,
    StoreReplaced,
    StoreUnavailable,
    TranscriptTooLarge,
    TurnConflict,
    TurnNotFound,
    UnknownVersion,
    UnreadMail,
)
from holdfast.core.errors import (
    BoundExceeded,
    ConversationBusy,
    DefinitionError,
    InvalidReply,
    InvalidRunId,
    MissingDefinition,
    ModelUnavailable,
    NotDurable,
    PayloadError,
    ProcessExit,
    RepeatedToolCalls,
    RunAlreadyRunning,
    RunCancelled,
    RunError,
    RunFailed,
    RunInterrupted,
    RunKilled,
    RunLost,
    RunParked,
    RuntimeExceeded,
    SaveFailed,
    Shutdown,
    ShuttingDown,
    StepsExceeded,
    ToolFailed,
    ToolTimeout,
    TurnFailed,
    TurnInterrupted,
    UnknownTool,
)
from holdfast.core.run.mail import MailArrived
from holdfast.core.run.run_events import ReaderTooSlow
from holdfast.core.run.waiting import BudgetExhausted, RunWaiting
from holdfast.core.workflow.steps.step_errors import AmbiguousStep, StepCancelled, StepDenied, StepFailed, StepTimeout
from holdfast.db.tables import TablesError, TablesUnavailable
from holdfast.fanout.errors import CorruptCheckpoint, FanoutError, PathRefused, WorkspaceChanged
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.web.errors import AddressInUse, Forbidden, InvalidToken, NotAuthenticated, RequestError

__all__ = [
    "AddressInUse",
    "AlreadyAnswered",
    "AmbiguousStep",
    "AuditError",
    "BoundExceeded",
    "BudgetError",
    "BudgetExhausted",
    "BudgetUnavailable",
    "CheckpointError",
    "ClaimLost",
    "ConversationBusy",
    "ConversationClosed",
    "CorruptCheckpoint",
    "CriticError",
    "DefinitionError",
    "DefinitionNotFound",
    "DefinitionStoreError",
    "DefinitionsUnavailable",
    "FanoutError",
    "Forbidden",
    "HoldfastError",
    "InvalidCursor",
    "InvalidReply",
    "InvalidRunId",
    "InvalidToken",
    "JobExists",
    "JobNotFound",
    "LimitReached",
    "MailArrived",
    "MalformedDefinition",
    "MissingDefinition",
    "ModelUnavailable",
    "NotAuthenticated",
    "NotDurable",
    "NotWaiting",
    "PathRefused",
    "PayloadError",
    "PersonaError",
    "ProcessExit",
    "RateLimitError",
    "RateLimitsUnavailable",
    "ReaderTooSlow",
    "RecordDecodeError",
    "RepeatedToolCalls",
    "RequestError",
    "RunAlreadyRunning",
    "RunBusy",
    "RunCancelled",
    "RunConflict",
    "RunDamaged",
    "RunEnded",
    "RunError",
    "RunExists",
    "RunFailed",
    "RunInterrupted",
    "RunKilled",
    "RunLost",
    "RunNotClaimable",
    "RunNotFound",
    "RunParked",
    "RunWaiting",
    "RuntimeExceeded",
    "SaveFailed",
    "ScheduleError",
    "SchemaTooNew",
    "SchemaTooOld",
    "Shutdown",
    "ShuttingDown",
    "SkillError",
    "StepCancelled",
    "StepDenied",
    "StepFailed",
    "StepTimeout",
    "StepsExceeded",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StorePermissionError",
    "StoreReplaced",
    "StoreUnavailable",
    "TablesError",
    "TablesUnavailable",
    "ToolFailed",
    "ToolTimeout",
    "TranscriptTooLarge",
    "TurnConflict",
    "TurnFailed",
    "TurnInterrupted",
    "TurnNotFound",
    "UnknownTool",
    "UnknownVersion",
    "UnreadMail",
    "WorkspaceChanged",
]
