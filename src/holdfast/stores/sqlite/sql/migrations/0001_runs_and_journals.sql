-- What the whole store counts: one row.
CREATE TABLE counters (
    -- The newest token. Run keys come from it too, so neither is ever used twice.
    token INTEGER NOT NULL,
    -- Grows with every commit that another process may wait for.
    signal INTEGER NOT NULL
) STRICT;

INSERT INTO counters (token, signal) VALUES (0, 0);

-- Small and rewritten at every save, so no column holds a prompt or a transcript.
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
    -- The journal has exactly the entries from the first number up to, and without, the second.
    first_seq INTEGER NOT NULL DEFAULT 0,
    next_seq INTEGER NOT NULL,
    size INTEGER NOT NULL,
    -- The newest piece of the journal, 0 if it is empty.
    last_piece INTEGER NOT NULL,
    meta BLOB NOT NULL,
    progress BLOB NOT NULL
) STRICT;

-- What no worker holds, for `claim_next`.
CREATE INDEX runs_waiting ON runs (agent_name, caller_id) WHERE status IN ('queued', 'interrupted');
-- What a worker holds, which waits too once that worker is dead.
CREATE INDEX runs_running ON runs (owner, agent_name, caller_id) WHERE status = 'running';
CREATE INDEX runs_unfinished ON runs (run_key) WHERE status IN ('queued', 'running', 'interrupted');
CREATE INDEX runs_to_cancel ON runs (owner) WHERE cancel_requested = 1;
CREATE INDEX runs_children ON runs (parent_run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_expiring ON runs (expires_at) WHERE expires_at IS NOT NULL;

-- The journals of all runs, in the order of arrival. A piece is the entries of one write: a row costs about the same,
-- however much is in it. Each piece names the run's piece before it, so a save touches the
-- last page only, however many runs there are and however long they are: no index, no page per run.
CREATE TABLE pieces (
    piece_key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL,
    -- The run's piece before this one, always a smaller key; 0 for the first of the journal.
    before INTEGER NOT NULL,
    -- So that a load need not go from piece to piece, every now and then one names many: a piece farther back, and, as
    -- JSON, all that lie between that one and this.
    far INTEGER,
    passed TEXT,
    -- The number of its first entry.
    seq INTEGER NOT NULL,
    -- Kind, by its first letter, and length of each entry, such as 'm1040 m1012 s98'; the bodies are one behind the other.
    layout TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The last pieces of journals that nobody can reach any more. They are deleted from there on backwards, bit by bit.
CREATE TABLE garbage (
    last_piece INTEGER PRIMARY KEY,
    -- Of the run that is gone: should damage lead the way to another run's pieces, they are left alone.
    run_key INTEGER NOT NULL
) STRICT;

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    heartbeat_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
