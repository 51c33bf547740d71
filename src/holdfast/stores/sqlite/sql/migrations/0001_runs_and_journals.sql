-- Counters of the store: one row.
CREATE TABLE counters (
    -- The newest fencing token. Run keys come from the same counter, so neither is used twice.
    token INTEGER NOT NULL,
    -- The change number: grows with every commit that another process may wait for.
    signal INTEGER NOT NULL
) STRICT;

INSERT INTO counters (token, signal) VALUES (0, 0);

-- A row is small, because every save rewrites it: no column holds a prompt or a transcript.
-- No index covers a column that a save changes.
CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    agent_name TEXT NOT NULL,
    caller_id TEXT NOT NULL,
    parent_run_id TEXT,
    status TEXT NOT NULL,
    -- Times are microseconds since 1970, in UTC.
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    owner TEXT,
    token INTEGER NOT NULL DEFAULT 0,
    strikes INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER,
    -- The journal has the entries from first_seq up to, but not including, next_seq.
    first_seq INTEGER NOT NULL DEFAULT 0,
    next_seq INTEGER NOT NULL,
    size INTEGER NOT NULL,
    -- The last segment of the journal; 0: the journal is empty.
    last_piece INTEGER NOT NULL,
    meta BLOB NOT NULL,
    progress BLOB NOT NULL
) STRICT;

-- Runs without an owner, for `claim_next`.
CREATE INDEX runs_waiting ON runs (agent_name, caller_id) WHERE status IN ('queued', 'interrupted');
-- Runs with an owner. They are claimable once that worker is dead.
CREATE INDEX runs_running ON runs (owner, agent_name, caller_id) WHERE status = 'running';
CREATE INDEX runs_unfinished ON runs (run_key) WHERE status IN ('queued', 'running', 'interrupted');
CREATE INDEX runs_to_cancel ON runs (owner) WHERE cancel_requested = 1;
CREATE INDEX runs_children ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_expiring ON runs (expires_at) WHERE expires_at IS NOT NULL;

-- The journals of all runs, in the order of arrival. A segment (a row) holds the entries of one write. Each segment names
-- the previous one of its run. So a save writes to the last page only: no index, no page per run.
CREATE TABLE pieces (
    piece_key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL,
    -- The previous segment of the run, always a smaller key; 0 for the first of the journal.
    before INTEGER NOT NULL,
    -- Skip pointers of earlier versions: a segment farther back, and the keys between as JSON. NULL in new rows.
    far INTEGER,
    passed TEXT,
    -- The number of the first entry.
    seq INTEGER NOT NULL,
    -- First letter of the kind, and length, of each entry, such as 'm1040 m1012 s98'. `body` concatenates the bodies.
    layout TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The last segments of journals that are unreachable. The vacuum deletes them from there backwards, in slices.
CREATE TABLE garbage (
    last_piece INTEGER PRIMARY KEY,
    -- Of the removed run. If a damaged chain leads to another run's segments, they are not deleted.
    run_key INTEGER NOT NULL
) STRICT;

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    heartbeat_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
