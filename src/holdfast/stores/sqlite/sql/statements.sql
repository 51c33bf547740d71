-- The statements of the store. Each starts at a line `-- name: ...`. `{record_columns}` stands for the columns of a record.
-- The loader strips lines that begin with `--`.

-- == transactions ====================================================================================================

-- name: read_counters
SELECT token, signal FROM counters

-- name: write_counters
UPDATE counters SET token = ?1, signal = ?2

-- == one run =========================================================================================================

-- name: insert_run
INSERT INTO runs (
    run_key, run_id, agent_name, caller_id, parent_run_id, status, created_at, updated_at, owner, token, strikes,
    not_before, next_seq, size, last_segment, info, progress, labels, priority, concurrency_key, tenant, background
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)

-- name: insert_label
INSERT INTO labels (run_key, name, value, status, created_at) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: run_exists
SELECT EXISTS (SELECT 1 FROM runs WHERE run_id = ?1)

-- name: update_run
-- 6: the write replaces the journal. 7: a step was finished.
UPDATE runs SET
    first_seq = iif(?6, next_seq, first_seq),
    next_seq = next_seq + ?2,
    size = iif(?6, 0, size) + ?3,
    updated_at = ?4,
    progress = coalesce(?5, progress),
    strikes = iif(?7, 0, strikes),
    not_before = iif(?7, min(not_before, ?4), not_before),
    last_segment = ?8
WHERE run_key = ?1

-- name: prepare_bulk_appends
-- A row inserted into this view is an append that does not replace the journal: it is checked and applied as in
-- `append`. A row without a run is ignored. View and trigger belong to the connection and are not stored in the file.
CREATE TEMP VIEW appends (now, run_id, token, count, progress, step_finished, seq, layout, checksum, body)
AS SELECT 0, 0, 0, 0, 0, 0, 0, 0, 0, 0;
CREATE TEMP TRIGGER append INSTEAD OF INSERT ON appends WHEN new.run_id IS NOT NULL BEGIN
    INSERT INTO segments (run_key, before, seq, layout, checksum, body)
    SELECT run_key, last_segment, new.seq, new.layout, new.checksum, new.body FROM runs
    WHERE run_id = new.run_id AND token = new.token AND status = 'running' AND next_seq = new.seq;
    SELECT raise(ABORT, 'an append was refused') WHERE changes() = 0;
    UPDATE runs SET
        next_seq = next_seq + new.count,
        size = size + length(new.body),
        updated_at = new.now,
        progress = new.progress,
        strikes = iif(new.step_finished, 0, strikes),
        not_before = iif(new.step_finished, min(not_before, new.now), not_before),
        last_segment = last_insert_rowid()
    WHERE run_id = new.run_id;
END

-- name: append_bulk
INSERT INTO appends VALUES {rows}

-- name: insert_segment
INSERT INTO segments (run_key, before, seq, layout, checksum, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: release_run
UPDATE runs SET
    status = iif(?11 AND cancel_requested, 'interrupted', ?2),
    reason = ?3, strikes = ?4, not_before = iif(?11 AND cancel_requested, ?7, ?5), expires_at = ?6, updated_at = ?7,
    cancel_requested = iif(?8, 0, cancel_requested),
    wake_at = iif(cancel_requested, NULL, ?9), wake_on = iif(cancel_requested, '[]', ?10)
WHERE run_key = ?1

-- name: run_row
-- Decides whether a write, a claim or a removal is allowed.
SELECT run_key, token, status, next_seq, owner, strikes, reason, last_segment, unread, wake_at, wake_on, agent_name,
    parent_run_id IS NOT NULL AND NOT background, concurrency_key, cancel_requested
FROM runs WHERE run_id = ?1

-- name: count_runs
-- The runs that wait for no worker are counted by an index alone.
SELECT agent_name, status, NULL, COUNT(*), 0, NULL FROM runs INDEXED BY runs_by_agent
WHERE status IN ('waiting', 'parked', 'done', 'failed', 'cancelled') GROUP BY agent_name, status
UNION ALL
SELECT agent_name, status, CASE WHEN status = 'running' THEN owner END AS holder, COUNT(*), SUM(not_before <= ?1),
    MIN(CASE WHEN not_before <= ?1 THEN updated_at END)
FROM runs INDEXED BY runs_by_status WHERE status IN ('queued', 'running', 'interrupted') GROUP BY agent_name, status, holder

-- name: running_owner
SELECT owner FROM runs WHERE run_key = ?1 AND status = 'running'

-- name: claim_run
UPDATE runs SET
    status = 'running', owner = ?2, token = ?3, strikes = ?4, not_before = ?5, updated_at = ?6, reason = '',
    expires_at = NULL, wake_at = NULL, wake_on = '[]'
WHERE run_key = ?1

-- name: request_cancel
UPDATE runs SET cancel_requested = 1 WHERE run_key = ?1 AND status NOT IN ('done', 'failed', 'cancelled')

-- name: pending_cancels
SELECT run_id FROM runs INDEXED BY runs_to_cancel
WHERE owner = ?1 AND cancel_requested = 1 AND status = 'running' ORDER BY run_key

-- == mail ============================================================================================================

-- name: post_mail
INSERT INTO mail (run_key, mail_id, topic, body, posted_at) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: find_mail
SELECT mail_id, topic, body, posted_at, consumed FROM mail WHERE run_key = ?1 AND mail_id = ?2

-- name: unread_mail
SELECT mail_id, topic, body, posted_at FROM mail WHERE run_key = ?1 AND consumed = 0 ORDER BY mail_key

-- name: consume_mail
-- The entry that used it has the content.
UPDATE mail SET consumed = 1, body = x'' WHERE run_key = ?1 AND mail_id = ?2

-- name: count_unread
UPDATE runs SET unread = unread + ?2 WHERE run_key = ?1

-- name: wake_run
UPDATE runs SET status = 'interrupted', reason = '', wake_at = NULL, wake_on = '[]', not_before = ?2, updated_at = ?2
WHERE run_key = ?1

-- name: pending_mail
SELECT run_id FROM runs INDEXED BY runs_with_mail WHERE owner = ?1 AND unread > 0 AND status = 'running' ORDER BY run_key

-- == removal =========================================================================================================

-- name: run_tree
-- The run and its descendants, with the last segments of their journals.
WITH RECURSIVE family (run_id) AS (
    SELECT ?1
    UNION
    SELECT child.run_id FROM family JOIN runs AS child ON child.parent_run_id = family.run_id
)
SELECT run_key, last_segment FROM family JOIN runs USING (run_id)

-- name: delete_run
DELETE FROM runs WHERE run_key = ?1

-- name: expired_runs
SELECT run_id FROM runs INDEXED BY runs_expiring
WHERE expires_at <= ?1 AND status IN ('done', 'failed', 'cancelled')
    -- A parent that may resume needs the result of its child.
    AND NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run_id = runs.parent_run_id AND parent.status <> 'done')
ORDER BY expires_at LIMIT ?2

-- name: gc_add
INSERT INTO garbage (last_segment, run_key) VALUES (?1, ?2)

-- name: list_garbage
SELECT run_key FROM garbage

-- name: prepare_gc
-- The segments that the next sweep deletes. The table belongs to the connection.
CREATE TEMP TABLE doomed (segment_key INTEGER PRIMARY KEY, run_key INTEGER, before INTEGER);
-- A row inserted into this view deletes them: one statement, because apsw releases the GIL for each.
CREATE TEMP VIEW sweeps (journals) AS SELECT 0;
CREATE TEMP TRIGGER sweep INSTEAD OF INSERT ON sweeps BEGIN
    DELETE FROM segments WHERE segment_key IN (SELECT segment_key FROM doomed)
        -- Another process may have deleted the segment meanwhile, and another run may have its key now.
        AND run_key = (SELECT doomed.run_key FROM doomed WHERE doomed.segment_key = segments.segment_key);
    INSERT OR IGNORE INTO garbage (last_segment, run_key)
    SELECT before, run_key FROM doomed
    WHERE before BETWEEN 1 AND segment_key - 1 AND before NOT IN (SELECT segment_key FROM doomed);
    DELETE FROM garbage WHERE last_segment IN (
        SELECT last_segment FROM garbage AS newest ORDER BY last_segment DESC LIMIT new.journals
    ) AND NOT EXISTS (
        SELECT 1 FROM segments WHERE segments.segment_key = garbage.last_segment AND segments.run_key = garbage.run_key
    );
    DELETE FROM doomed;
END

-- name: gc_mark
-- Mark the newest unreachable segments: of at most ?1 journals, at most ?2 segments, about ?3 bytes. Newest first, so that
-- journals that share pages are deleted page by page. A damaged journal ends early.
INSERT INTO doomed (segment_key, run_key, before)
WITH RECURSIVE
ends AS (SELECT last_segment, run_key FROM garbage ORDER BY last_segment DESC LIMIT ?1),
chain (segment_key, run_key, before, size) AS (
    SELECT segments.segment_key, segments.run_key, segments.before, length(segments.body)
    FROM ends CROSS JOIN segments ON segments.segment_key = ends.last_segment AND segments.run_key = ends.run_key
    UNION ALL
    SELECT segments.segment_key, segments.run_key, segments.before, length(segments.body)
    FROM chain CROSS JOIN segments ON segments.segment_key = chain.before AND segments.run_key = chain.run_key
    WHERE chain.before < chain.segment_key
    ORDER BY 1 DESC LIMIT ?2
)
SELECT segment_key, run_key, before
FROM (SELECT segment_key, run_key, before, size, sum(size) OVER (ORDER BY segment_key DESC) AS total FROM chain)
WHERE total - size < ?3

-- name: gc_sweep
INSERT INTO sweeps VALUES (?1)

-- name: gc_unmark
DELETE FROM doomed

-- == reading =========================================================================================================

-- name: record_columns
run_key, run_id, agent_name, caller_id, parent_run_id, status, created_at, updated_at, owner, token, strikes,
not_before, reason, cancel_requested, expires_at, next_seq, size, info, progress, wake_at, wake_on, labels,
priority, concurrency_key, tenant, background

-- name: load_record
SELECT first_seq, last_segment, unread, {record_columns} FROM runs WHERE run_id = ?1

-- name: read_segment
SELECT before, seq, layout, checksum, body FROM segments WHERE segment_key = ?1 AND run_key = ?2

-- name: list_page
-- `branches` are UNION ALL of `list_branch`. SQLite merges them, so only the rows of the page are read.
SELECT {record_columns} FROM (
    {branches} ORDER BY created {direction}, key {direction} LIMIT :limit
) AS page CROSS JOIN runs ON runs.run_key = page.key
ORDER BY created {direction}, key {direction}

-- name: list_branch
SELECT {k}.created_at AS created, {k}.run_key AS key FROM {source} WHERE {conditions}

-- name: has_label
EXISTS (SELECT 1 FROM labels AS other WHERE other.run_key = {k}.run_key AND {condition})

-- name: probe_source
SELECT count(*) FROM (SELECT 1 FROM {source} WHERE {conditions} LIMIT :probe)

-- == claiming ==========================================================================================================

-- name: running_owners
-- Skips from one owner to the next, so the cost does not depend on the number of runs.
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM runs INDEXED BY runs_running WHERE status = 'running'
    UNION ALL
    SELECT (SELECT min(runs.owner) FROM runs INDEXED BY runs_running WHERE runs.status = 'running' AND runs.owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL

-- name: claimable_priorities
-- The priorities of the runs of agent ?1 without an owner. Skips from one to the next.
WITH RECURSIVE priorities (priority) AS (
    SELECT min(priority) FROM runs INDEXED BY runs_waiting WHERE status IN ('queued', 'interrupted') AND agent_name = ?1
    UNION ALL
    SELECT (
        SELECT min(runs.priority) FROM runs INDEXED BY runs_waiting
        WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.priority > priorities.priority
    )
    FROM priorities WHERE priorities.priority IS NOT NULL
)
SELECT priority FROM priorities WHERE priority IS NOT NULL

-- name: due_priorities
-- The same for the waiting runs whose time has come.
WITH RECURSIVE priorities (priority) AS (
    SELECT min(priority) FROM runs INDEXED BY runs_due WHERE status = 'waiting' AND wake_at IS NOT NULL AND agent_name = ?1
    UNION ALL
    SELECT (
        SELECT min(runs.priority) FROM runs INDEXED BY runs_due
        WHERE runs.status = 'waiting' AND runs.wake_at IS NOT NULL AND runs.agent_name = ?1
            AND runs.priority > priorities.priority
    )
    FROM priorities WHERE priorities.priority IS NOT NULL
)
SELECT priority FROM priorities
WHERE EXISTS (
    SELECT 1 FROM runs INDEXED BY runs_due
    WHERE runs.status = 'waiting' AND runs.agent_name = ?1 AND runs.priority = priorities.priority AND runs.wake_at <= ?2
)

-- name: claimable_lanes
-- Lanes (caller and key) of agent ?1 and priority ?2, from lane (?3, ?4) on. Skips from one to the next, so the cost does
-- not depend on the number of runs. Two lookups, because SQLite uses one column of an index for a comparison of rows.
WITH RECURSIVE lanes (run_key) AS (
    SELECT coalesce(
        (
            SELECT runs.run_key FROM runs INDEXED BY runs_waiting
            WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.priority = ?2
                AND runs.caller_id = ?3 AND runs.concurrency_key >= ?4
            ORDER BY runs.concurrency_key LIMIT 1
        ),
        (
            SELECT runs.run_key FROM runs INDEXED BY runs_waiting
            WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.priority = ?2
                AND runs.caller_id > ?3
            ORDER BY runs.caller_id, runs.concurrency_key LIMIT 1
        )
    )
    UNION ALL
    SELECT coalesce(
        (
            SELECT runs.run_key FROM runs INDEXED BY runs_waiting
            WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.priority = ?2
                AND runs.caller_id = lane.caller_id AND runs.concurrency_key > lane.concurrency_key
            ORDER BY runs.concurrency_key LIMIT 1
        ),
        (
            SELECT runs.run_key FROM runs INDEXED BY runs_waiting
            WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.priority = ?2
                AND runs.caller_id > lane.caller_id
            ORDER BY runs.caller_id, runs.concurrency_key LIMIT 1
        )
    )
    FROM lanes CROSS JOIN runs AS lane ON lane.run_key = lanes.run_key
    LIMIT ?5
)
SELECT runs.caller_id, runs.concurrency_key FROM lanes CROSS JOIN runs USING (run_key)

-- name: claimable_runs
-- A record of the future was written by a clock that was ahead: its backoff is ignored, rather than waited for all that time.
SELECT run_key, run_id, strikes, agent_name, parent_run_id IS NOT NULL AND NOT background, concurrency_key
FROM runs INDEXED BY runs_waiting
WHERE status IN ('queued', 'interrupted') AND agent_name = ?1 AND priority = ?2 AND caller_id = ?3 AND concurrency_key = ?4
    AND (not_before <= ?5 OR updated_at > ?5 + 10000000)
    AND (background OR NOT EXISTS (
        SELECT 1 FROM runs AS parent
        WHERE parent.run_id = runs.parent_run_id AND parent.status NOT IN ('done', 'failed', 'cancelled')
    ))
ORDER BY run_key LIMIT ?6

-- name: orphaned_runs
-- Runs of agent ?1 that the dead worker ?4 owned. Runs whose keys are in the JSON list ?5 have no slot.
SELECT run_key, run_id, strikes, agent_name, parent_run_id IS NOT NULL AND NOT background, concurrency_key, priority,
    caller_id
FROM runs INDEXED BY runs_running
WHERE status = 'running' AND owner = ?4 AND agent_name = ?1
    AND (not_before <= ?2 OR updated_at > ?2 + 10000000)
    AND concurrency_key NOT IN (SELECT value FROM json_each(?5))
    AND (background OR NOT EXISTS (
        SELECT 1 FROM runs AS parent
        WHERE parent.run_id = runs.parent_run_id AND parent.status NOT IN ('done', 'failed', 'cancelled')
    ))
ORDER BY priority DESC, run_key LIMIT ?3

-- name: due_runs
-- Waiting runs of agent ?1 and priority ?4 whose time has come. The others are not read.
SELECT run_key, run_id, strikes, agent_name, parent_run_id IS NOT NULL AND NOT background, concurrency_key, priority,
    caller_id
FROM runs INDEXED BY runs_due
WHERE status = 'waiting' AND agent_name = ?1 AND priority = ?4 AND wake_at <= ?2 AND not_before <= ?2
    AND concurrency_key NOT IN (SELECT value FROM json_each(?5))
    AND (background OR NOT EXISTS (
        SELECT 1 FROM runs AS parent
        WHERE parent.run_id = runs.parent_run_id AND parent.status NOT IN ('done', 'failed', 'cancelled')
    ))
ORDER BY wake_at LIMIT ?3

-- == limits ============================================================================================================

-- name: set_limit
INSERT INTO limits (kind, name, max_runs, is_default) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (kind, name) DO UPDATE SET max_runs = excluded.max_runs, is_default = excluded.is_default
WHERE is_default OR NOT excluded.is_default

-- name: remove_limit
DELETE FROM limits WHERE kind = ?1 AND name = ?2 AND (is_default OR NOT ?3)

-- name: find_limit
SELECT 1 FROM limits WHERE kind = ?1 AND name = ?2

-- name: list_limits
SELECT kind, name, max_runs, is_default FROM limits ORDER BY kind, name

-- name: running_runs
-- The runs that hold a slot if their owner is alive.
SELECT owner, agent_name, concurrency_key, count(*) FROM runs INDEXED BY runs_running
WHERE status = 'running' AND (parent_run_id IS NULL OR background) GROUP BY owner, agent_name, concurrency_key

-- == workers =========================================================================================================

-- name: register_worker
INSERT INTO workers (worker_id, host, pid, started, heartbeat_at, agents) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (worker_id) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, started = excluded.started, heartbeat_at = excluded.heartbeat_at,
    agents = excluded.agents

-- name: beat
-- An update: a heartbeat does not bring back a worker that was deregistered. It changes the value even if the clock stands
-- still or was set back.
UPDATE workers SET heartbeat_at = max(heartbeat_at + 1, ?2) WHERE worker_id = ?1

-- name: deregister_worker
DELETE FROM workers WHERE worker_id = ?1

-- name: get_worker
SELECT worker_id, host, pid, started, heartbeat_at, agents FROM workers WHERE worker_id = ?1

-- name: list_workers
SELECT worker_id, host, pid, started, heartbeat_at, agents FROM workers

-- name: put_draft
-- Parameters: run id, token, body.
INSERT INTO drafts (run_key, token, body)
SELECT run_key, token, ?3 FROM runs WHERE run_id = ?1 AND token = ?2 AND status = 'running'
ON CONFLICT (run_key) DO UPDATE SET token = excluded.token, body = excluded.body

-- name: drop_draft
-- Parameters: run id, token.
DELETE FROM drafts WHERE run_key = (SELECT run_key FROM runs WHERE run_id = ?1) AND token = ?2

-- name: read_draft
SELECT drafts.body FROM runs JOIN drafts USING (run_key)
WHERE run_id = ? AND drafts.token = runs.token AND status = 'running'

-- name: forget_draft_requests
DELETE FROM draft_requests WHERE until <= ?

-- name: request_drafts
INSERT INTO draft_requests (run_id, until) VALUES (?, ?)
ON CONFLICT (run_id) DO UPDATE SET until = max(until, excluded.until)

-- name: pending_drafts
-- Parameters: the worker, the time.
SELECT run_id FROM draft_requests CROSS JOIN runs USING (run_id)
WHERE until > ?2 AND owner = ?1 AND status = 'running' ORDER BY run_key
