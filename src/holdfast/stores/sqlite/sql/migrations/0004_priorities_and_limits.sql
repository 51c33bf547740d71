-- `limit_key` is empty for a run without a key. Both columns have constants as defaults, so no row is rewritten.
ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN limit_key TEXT NOT NULL DEFAULT '';

-- The indexes of `claim_next` keep their names, which statements of earlier releases mention.
DROP INDEX runs_waiting;
DROP INDEX runs_due;
CREATE INDEX runs_waiting ON runs (agent_name, priority, caller_id, limit_key) WHERE status IN ('queued', 'interrupted');
CREATE INDEX runs_due ON runs (agent_name, priority, wake_at) WHERE status = 'waiting' AND wake_at IS NOT NULL;

-- At most `max_runs` runs of an agent or a key are running. `kind` is 'agent' or 'key'.
CREATE TABLE limits (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    max_runs INTEGER NOT NULL,
    -- Set by an App at its start.
    is_default INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
