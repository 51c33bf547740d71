"""The root of every error that holdfast raises on purpose.

HoldfastError
├── RunError                    what can go wrong in a run: `holdfast.core.errors`
│   ├── InvalidRunId, RunAlreadyRunning, NotDurable, InvalidReply, PayloadError
│   ├── DefinitionError         UnknownTool, and those of personas and skills
│   ├── BoundExceeded           StepsExceeded, RuntimeExceeded, RepeatedToolCalls
│   ├── ToolFailed, RunKilled, RunCancelled, RunFailed
│   ├── RunParked               waits for a person or a condition, with a reason
│   ├── RunInterrupted          stopped on purpose or by trouble; goes on later: Shutdown, ShuttingDown,
│   │                           MissingDefinition, SaveFailed, ModelUnavailable
│   └── RunLost                 another worker owns the run
├── CheckpointError             what can go wrong with saved runs: `holdfast.checkpoint.errors`
│   ├── StoreError              StoreUnavailable, StoreFull, StorePermissionError, StoreClosed, SchemaTooNew
│   │   └── ClaimLost           is a RunLost too
│   ├── RunBusy, RunExists (is a RunError too), RunConflict, RunNotFound, RunNotClaimable, RunDamaged
│   └── UnknownVersion, RecordDecodeError, TranscriptTooLarge (is a RunParked too)
└── one branch for each battery and for the fan-out, in its own `errors` module
"""


class HoldfastError(Exception):
    """Something holdfast noticed. The message says what happened and what to do."""
