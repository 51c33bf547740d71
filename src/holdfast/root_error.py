"""The root of the errors that holdfast raises.

HoldfastError
├── RunError                    errors of a run: `holdfast.core.errors`
│   ├── RunAlreadyRunning, NotDurable, InvalidReply, PayloadError
│   ├── DefinitionError         a wrong argument: InvalidRunId, UnknownTool, PersonaError, SkillError
│   ├── BoundExceeded           StepsExceeded, RuntimeExceeded, RepeatedToolCalls
│   ├── ToolFailed, ToolTimeout, RunKilled, RunCancelled, RunFailed (of a turn: TurnFailed)
│   ├── TurnInterrupted, ConversationBusy
│   ├── RunParked               the run waits for a person or a condition
│   ├── RunInterrupted          the run stopped and is resumed later: Shutdown, ShuttingDown, MissingDefinition,
│   │                           ProcessExit, SaveFailed, ModelUnavailable, MailArrived
│   └── RunLost                 another worker owns the run
├── CheckpointError             errors of stored runs: `holdfast.checkpoint.errors`
│   ├── StoreError              StoreUnavailable, StoreFull, StorePermissionError, StoreClosed, SchemaTooNew,
│   │   │                       SchemaTooOld
│   │   └── ClaimLost           is a RunLost too
│   ├── RunBusy, RunExists (is a RunError too), RunConflict, RunNotFound, RunDamaged
│   ├── RunNotClaimable (LimitReached is one)
│   ├── RunEnded (of a conversation: ConversationClosed), TurnConflict, UnreadMail, InvalidCursor
│   └── UnknownVersion, RecordDecodeError, TranscriptTooLarge (is a RunParked too)
├── TablesError                 errors of the batteries' tables: `holdfast.db.errors`
├── RequestError                a refused HTTP request: `holdfast.web.errors`
├── FanoutError                 errors of the fan-out: `holdfast.fanout.errors`
└── others, beside the code that raises them: AuditError, BudgetError, RateLimitError, CriticError,
    ScheduleError, DefinitionStoreError, RecipeError, CommandError, ReaderTooSlow
"""


class HoldfastError(Exception):
    """An error that holdfast raises. The message says what happened and what to do."""
