-- Replies under way, for watchers. Written without a sync, so a power cut may take them back.
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
