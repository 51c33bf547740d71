-- `labels` and `wake_on` are JSON. A waiting run is due at `wake_at`; NULL: only mail wakes it.
ALTER TABLE runs ADD COLUMN labels TEXT NOT NULL DEFAULT '{}';
ALTER TABLE runs ADD COLUMN wake_at INTEGER;
ALTER TABLE runs ADD COLUMN wake_on TEXT NOT NULL DEFAULT '[]';
-- The number of unread mails.
ALTER TABLE runs ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;

-- Listings are in the order of (created_at, run_key). Each index has the status before it, so that a page of one status
-- reads only its own rows; a page of several statuses merges them.
DROP INDEX runs_unfinished;
DROP INDEX runs_children;
CREATE INDEX runs_by_status ON runs (status, created_at);
CREATE INDEX runs_by_agent ON runs (agent_name, status, created_at);
CREATE INDEX runs_by_caller ON runs (caller_id, status, created_at);
CREATE INDEX runs_by_parent ON runs (parent_run_id, created_at) WHERE parent_run_id IS NOT NULL;

-- Waiting runs by the time they are due, for `claim_next`.
CREATE INDEX runs_due ON runs (agent_name, wake_at) WHERE status = 'waiting' AND wake_at IS NOT NULL;
-- Running runs that have to be notified of their mail.
CREATE INDEX runs_with_mail ON runs (owner) WHERE unread > 0 AND status = 'running';

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

CREATE TRIGGER labels_end_with_run AFTER DELETE ON runs WHEN old.labels <> '{}' BEGIN
    DELETE FROM labels WHERE run_key = old.run_key;
END;

CREATE TRIGGER mail_ends_with_run AFTER DELETE ON runs BEGIN
    DELETE FROM mail WHERE run_key = old.run_key;
END;
