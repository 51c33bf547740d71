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
    -- Empty: the run has no tenant.
    tenant TEXT NOT NULL DEFAULT '',
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
    last_segment INTEGER NOT NULL,
    info BLOB NOT NULL,
    progress BLOB NOT NULL,
    -- `labels` and `wake_on` are JSON. A waiting run is due at `wake_at`; NULL: only mail wakes it.
    labels TEXT NOT NULL DEFAULT '{}',
    wake_at INTEGER,
    wake_on TEXT NOT NULL DEFAULT '[]',
    -- The number of unread mails.
    unread INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL DEFAULT 0,
    -- Empty for a run without a key.
    concurrency_key TEXT NOT NULL DEFAULT '',
    -- Whether workers may claim a child although its parent has not ended.
    background INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Runs without an owner, for `claim_next`.
CREATE INDEX runs_waiting ON runs (agent_name, priority, caller_id, concurrency_key)
WHERE status IN ('queued', 'interrupted');
-- Runs with an owner. They are claimable once that worker is dead.
CREATE INDEX runs_running ON runs (owner, agent_name, caller_id) WHERE status = 'running';
-- Waiting runs by the time they are due, for `claim_next`.
CREATE INDEX runs_due ON runs (agent_name, priority, wake_at) WHERE status = 'waiting' AND wake_at IS NOT NULL;
-- Running runs that have to be notified of a cancel request or of their mail.
CREATE INDEX runs_to_cancel ON runs (owner) WHERE cancel_requested = 1;
CREATE INDEX runs_with_mail ON runs (owner) WHERE unread > 0 AND status = 'running';
CREATE INDEX runs_expiring ON runs (expires_at) WHERE expires_at IS NOT NULL;

-- Listings are in the order of (created_at, run_key). Each index has the status before it, so that a page of one status
-- reads only its own rows; a page of several statuses merges them.
CREATE INDEX runs_by_status ON runs (status, created_at);
CREATE INDEX runs_by_agent ON runs (agent_name, status, created_at);
CREATE INDEX runs_by_caller ON runs (caller_id, status, created_at);
CREATE INDEX runs_by_tenant ON runs (tenant, status, created_at) WHERE tenant <> '';
CREATE INDEX runs_by_parent ON runs (parent_run_id, created_at) WHERE parent_run_id IS NOT NULL;

-- The labels of each run, with the columns of `runs` that listings filter and sort by. Triggers keep them equal.
CREATE TABLE labels (
    run_key INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run_key, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_by_label ON labels (name, value, status, created_at, run_key);

CREATE TRIGGER labels_follow_status AFTER UPDATE OF status ON runs WHEN old.labels <> '{}' BEGIN
    UPDATE labels SET status = new.status WHERE run_key = old.run_key;
END;

CREATE TRIGGER labels_end_with_run AFTER DELETE ON runs WHEN old.labels <> '{}' BEGIN
    DELETE FROM labels WHERE run_key = old.run_key;
END;

-- The journals of all runs, in the order of arrival. A segment (a row) holds the entries of one write. Each segment names
-- the previous one of its run. So a save writes to the last page only: no index, no page per run.
CREATE TABLE segments (
    segment_key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL,
    -- The previous segment of the run, always a smaller key; 0 for the first of the journal.
    before INTEGER NOT NULL,
    -- The number of the first entry.
    seq INTEGER NOT NULL,
    -- Kind (a letter) and length of each entry, such as 'm1040 m1012 s98'. `body` concatenates the bodies.
    layout TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The last segments of journals that are unreachable. The vacuum deletes them from there backwards, in slices.
CREATE TABLE garbage (
    last_segment INTEGER PRIMARY KEY,
    -- Of the removed run. If a damaged chain leads to another run's segments, they are not deleted.
    run_key INTEGER NOT NULL
) STRICT;

-- In the order of arrival. Consumed mail stays without its body as long as its run, so that its id is used once.
CREATE TABLE mail (
    mail_key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL,
    mail_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    body BLOB NOT NULL,
    posted_at INTEGER NOT NULL,
    consumed INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX mail_of_run ON mail (run_key, mail_id);
CREATE INDEX mail_unread ON mail (run_key, mail_key) WHERE consumed = 0;

CREATE TRIGGER mail_ends_with_run AFTER DELETE ON runs BEGIN
    DELETE FROM mail WHERE run_key = old.run_key;
END;

-- Replies in progress, for watchers. Written without a sync, so a power cut may take them back.
CREATE TABLE drafts (
    run_key INTEGER PRIMARY KEY,
    -- Of the claim under which it was put: a draft of an earlier claim is void.
    token INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE TRIGGER drafts_end_with_run AFTER DELETE ON runs BEGIN
    DELETE FROM drafts WHERE run_key = old.run_key;
END;

-- Runs whose drafts another process watches.
CREATE TABLE draft_requests (
    run_id TEXT PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- At most `max_runs` runs of an agent or a key are running. `kind` is 'agent' or 'key'.
CREATE TABLE limits (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    max_runs INTEGER NOT NULL,
    -- Set by an App at its start.
    is_default INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    heartbeat_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
