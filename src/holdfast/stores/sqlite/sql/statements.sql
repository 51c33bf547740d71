-- The statements of the store. Each begins at a line `-- name: ...`; `{record_columns}` stands for the columns of a record.
-- Lines that begin with `--` are for the reader and are not sent.

-- == transactions ====================================================================================================

-- name: begin
-- The lock is taken now, not at the first write: what a write checks cannot change before it is committed.
BEGIN IMMEDIATE

-- name: read_counters
SELECT token, signal FROM counters

-- name: write_counters
UPDATE counters SET token = ?1, signal = ?2

-- name: last_segment_key
SELECT coalesce(max(piece_key), 0) FROM pieces

-- == one run =========================================================================================================

-- name: insert_run
INSERT INTO runs (
    run_key, run_id, agent_name, caller_id, parent_run_id, status, created_at, updated_at, owner, token, strikes,
    not_before, next_seq, size, last_piece, meta, progress
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)

-- name: run_exists
SELECT EXISTS (SELECT 1 FROM runs WHERE run_id = ?1)

-- name: update_run
-- The claim, the order of entries and the end of the journal are the condition: no row changes if one of them is not
-- what the writer believes. 5: the journal starts anew. 6: a step was finished.
UPDATE runs SET
    first_seq = iif(?5, next_seq, first_seq),
    next_seq = next_seq + ?1,
    size = iif(?5, 0, size) + ?2,
    updated_at = ?3,
    progress = coalesce(?4, progress),
    strikes = iif(?6, 0, strikes),
    not_before = iif(?6, min(not_before, ?3), not_before),
    last_piece = coalesce(?7, last_piece)
WHERE run_key = ?10 AND token = ?8 AND status = 'running' AND last_piece = ?11 AND next_seq = coalesce(?9, next_seq)

-- name: prepare_bulk_appends
-- The same, and the new piece, for many runs in one statement: what is put into this view is an append. None of their
-- journals starts anew. It belongs to the connection: the file knows nothing of it.
CREATE TEMP VIEW appends (
    now, count, progress, finished_step, token, piece_key, run_key, before, far, passed, seq, layout, checksum, body
) AS SELECT 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0;
CREATE TEMP TRIGGER append INSTEAD OF INSERT ON appends WHEN new.run_key IS NOT NULL BEGIN
    UPDATE runs SET
        next_seq = next_seq + new.count,
        size = size + length(new.body),
        updated_at = new.now,
        progress = new.progress,
        strikes = iif(new.finished_step, 0, strikes),
        not_before = iif(new.finished_step, min(not_before, new.now), not_before),
        last_piece = new.piece_key
    WHERE run_key = new.run_key AND token = new.token AND status = 'running'
        AND last_piece = new.before AND next_seq = new.seq;
    SELECT raise(ABORT, 'a run did not take its append') WHERE changes() = 0;
    INSERT INTO pieces (piece_key, run_key, before, far, passed, seq, layout, checksum, body)
    VALUES (
        new.piece_key, new.run_key, new.before, new.far, new.passed, new.seq, new.layout, new.checksum, new.body
    );
END

-- name: append_bulk
INSERT INTO appends VALUES {rows}

-- name: journal_tail
SELECT run_key, last_piece FROM runs WHERE run_id = ?1 AND token = ?2 AND status = 'running'

-- name: insert_segment
INSERT INTO pieces (piece_key, run_key, before, far, passed, seq, layout, checksum, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- name: release_run
UPDATE runs SET
    status = ?2, reason = ?3, strikes = ?4, not_before = ?5, expires_at = ?6, updated_at = ?7,
    cancel_requested = iif(?8, 0, cancel_requested)
WHERE run_key = ?1

-- name: run_row
-- What decides whether a write, a claim or a removal may be.
SELECT run_key, token, status, next_seq, owner, strikes, reason FROM runs WHERE run_id = ?1

-- name: claim_run
UPDATE runs SET
    status = 'running', owner = ?2, token = ?3, strikes = ?4, not_before = ?5, updated_at = ?6, reason = '',
    expires_at = NULL
WHERE run_key = ?1

-- name: request_cancel
UPDATE runs SET cancel_requested = 1 WHERE run_key = ?1 AND status NOT IN ('done', 'failed', 'cancelled')

-- name: pending_cancellations
SELECT run_id FROM runs WHERE owner = ?1 AND cancel_requested = 1 AND status = 'running' ORDER BY run_key

-- == removal =========================================================================================================

-- name: run_tree
-- The run and all it started, with the ends of their journals.
WITH RECURSIVE family (run_id) AS (
    SELECT ?1
    UNION
    SELECT child.run_id FROM family JOIN runs AS child ON child.parent_run_id = family.run_id
)
SELECT run_key, last_piece FROM family JOIN runs USING (run_id)

-- name: prepare_bulk_removals
-- The same for many runs in one statement: what is put into this view is a removal of a run that started no others.
-- The first column is not used. It belongs to the connection.
CREATE TEMP VIEW removals (unused, run_id, token) AS SELECT 0, 0, 0;
CREATE TEMP TRIGGER removal INSTEAD OF INSERT ON removals WHEN new.run_id IS NOT NULL BEGIN
    SELECT raise(ABORT, 'a run is not to be removed like this')
    WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run_id = new.run_id AND token = new.token)
        OR EXISTS (SELECT 1 FROM runs WHERE parent_run_id = new.run_id);
    INSERT INTO garbage (last_piece, run_key)
    SELECT last_piece, run_key FROM runs WHERE run_id = new.run_id AND last_piece > 0;
    DELETE FROM runs WHERE run_id = new.run_id;
END

-- name: remove_bulk
INSERT INTO removals VALUES {rows}

-- name: delete_run
DELETE FROM runs WHERE run_key = ?1

-- name: expired_runs
SELECT run_id FROM runs
WHERE expires_at <= ?1 AND status IN ('done', 'failed', 'cancelled')
    -- A parent that may go on has to meet its child again.
    AND NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run_id = runs.parent_run_id AND parent.status <> 'done')
ORDER BY expires_at LIMIT ?2

-- name: gc_add
INSERT INTO garbage (last_piece, run_key) VALUES (?1, ?2)

-- name: prepare_gc
-- What is about to be deleted; and, put into the view, the order to do so. They belong to the connection.
CREATE TEMP TABLE doomed (piece_key INTEGER PRIMARY KEY, run_key INTEGER, before INTEGER);
CREATE TEMP VIEW sweeps (journals) AS SELECT 0;
CREATE TEMP TRIGGER sweep INSTEAD OF INSERT ON sweeps BEGIN
    DELETE FROM pieces WHERE piece_key IN (SELECT piece_key FROM doomed)
        -- Meanwhile another process may have deleted it, too, and given its key to another run's.
        AND run_key = (SELECT doomed.run_key FROM doomed WHERE doomed.piece_key = pieces.piece_key);
    INSERT OR IGNORE INTO garbage (last_piece, run_key)
    SELECT before, run_key FROM doomed
    WHERE before BETWEEN 1 AND piece_key - 1 AND before NOT IN (SELECT piece_key FROM doomed);
    DELETE FROM garbage WHERE last_piece IN (
        SELECT last_piece FROM garbage AS newest ORDER BY last_piece DESC LIMIT new.journals
    ) AND NOT EXISTS (
        SELECT 1 FROM pieces WHERE pieces.piece_key = garbage.last_piece AND pieces.run_key = garbage.run_key
    );
    DELETE FROM doomed;
END

-- name: gc_mark
-- The newest pieces that nobody can reach, of 1 journals at most: no more than 2 pieces, nor many more than 3 bytes. From the
-- end of the file, so that journals that lie between one another are deleted page by page. A damaged journal ends early.
INSERT INTO doomed (piece_key, run_key, before)
WITH RECURSIVE
ends AS (SELECT last_piece, run_key FROM garbage ORDER BY last_piece DESC LIMIT ?1),
way (piece_key, run_key, before, size) AS (
    SELECT pieces.piece_key, pieces.run_key, pieces.before, length(pieces.body)
    FROM ends CROSS JOIN pieces ON pieces.piece_key = ends.last_piece AND pieces.run_key = ends.run_key
    UNION ALL
    SELECT pieces.piece_key, pieces.run_key, pieces.before, length(pieces.body)
    FROM way CROSS JOIN pieces ON pieces.piece_key = way.before AND pieces.run_key = way.run_key
    WHERE way.before < way.piece_key
    ORDER BY 1 DESC LIMIT ?2
)
SELECT piece_key, run_key, before
FROM (SELECT piece_key, run_key, before, size, sum(size) OVER (ORDER BY piece_key DESC) AS total FROM way)
WHERE total - size < ?3

-- name: gc_sweep
INSERT INTO sweeps VALUES (?1)

-- name: gc_unmark
DELETE FROM doomed

-- == reading =========================================================================================================

-- name: record_columns
run_key, run_id, agent_name, caller_id, parent_run_id, status, created_at, updated_at, owner, token, strikes,
not_before, reason, cancel_requested, expires_at, next_seq, size, meta, progress

-- name: load_record
SELECT first_seq, last_piece, {record_columns} FROM runs WHERE run_id = ?1

-- name: read_segment
-- With the next piece on the way backwards, and those that the way there passes over.
SELECT coalesce(far, before), passed, seq, layout, checksum, body FROM pieces WHERE piece_key = ?1 AND run_key = ?2

-- name: read_segments
-- +?2: SQLite would prepare the statement anew for every run, to look at the key while it plans.
SELECT seq, layout, checksum, body
FROM json_each(?1) AS place CROSS JOIN pieces ON pieces.piece_key = place.value
WHERE run_key = +?2

-- name: list_runs
SELECT {record_columns} FROM runs
WHERE run_key > ?1
    AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR agent_name = ?3)
    AND (?4 IS NULL OR caller_id = ?4)
ORDER BY run_key LIMIT ?5

-- name: list_children
SELECT {record_columns} FROM runs
WHERE run_key > ?1
    AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR agent_name = ?3)
    AND (?4 IS NULL OR caller_id = ?4)
    AND parent_run_id = ?6
ORDER BY run_key LIMIT ?5

-- name: list_unfinished
SELECT {record_columns} FROM runs INDEXED BY runs_unfinished
WHERE run_key > ?1
    AND status IN ('queued', 'running', 'interrupted')
    AND (?2 IS NULL OR status IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR agent_name = ?3)
    AND (?4 IS NULL OR caller_id = ?4)
    AND (?6 IS NULL OR parent_run_id = ?6)
ORDER BY run_key LIMIT ?5

-- == the next runs to take ===========================================================================================

-- name: running_owners
-- From one owner to the next, whatever the number of runs each holds.
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM runs WHERE status = 'running'
    UNION ALL
    SELECT (SELECT min(runs.owner) FROM runs WHERE runs.status = 'running' AND runs.owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL

-- name: claimable_callers
-- From one caller of agent 1 to the next, caller 2 being the first that counts, whatever the number of runs each has.
WITH RECURSIVE callers (caller_id) AS (
    SELECT min(caller_id) FROM runs
    WHERE status IN ('queued', 'interrupted') AND agent_name = ?1 AND caller_id >= ?2
    UNION ALL
    SELECT (
        SELECT min(runs.caller_id) FROM runs
        WHERE runs.status IN ('queued', 'interrupted') AND runs.agent_name = ?1 AND runs.caller_id > callers.caller_id
    )
    FROM callers WHERE callers.caller_id IS NOT NULL
)
SELECT caller_id FROM callers WHERE caller_id IS NOT NULL LIMIT ?3

-- name: orphaned_callers
-- The same among the runs that the dead worker 4 held.
WITH RECURSIVE callers (caller_id) AS (
    SELECT min(caller_id) FROM runs
    WHERE status = 'running' AND owner = ?4 AND agent_name = ?1 AND caller_id >= ?2
    UNION ALL
    SELECT (
        SELECT min(runs.caller_id) FROM runs
        WHERE runs.status = 'running' AND runs.owner = ?4 AND runs.agent_name = ?1
            AND runs.caller_id > callers.caller_id
    )
    FROM callers WHERE callers.caller_id IS NOT NULL
)
SELECT caller_id FROM callers WHERE caller_id IS NOT NULL LIMIT ?3

-- name: claimable_runs
SELECT run_key, run_id, strikes FROM runs
WHERE status IN ('queued', 'interrupted') AND agent_name = ?1 AND caller_id = ?2 AND not_before <= ?3
    AND NOT EXISTS (
        SELECT 1 FROM runs AS parent
        WHERE parent.run_id = runs.parent_run_id AND parent.status NOT IN ('done', 'failed', 'cancelled')
    )
ORDER BY run_key LIMIT ?4

-- name: orphaned_runs
SELECT run_key, run_id, strikes FROM runs
WHERE status = 'running' AND owner = ?5 AND agent_name = ?1 AND caller_id = ?2 AND not_before <= ?3
    AND NOT EXISTS (
        SELECT 1 FROM runs AS parent
        WHERE parent.run_id = runs.parent_run_id AND parent.status NOT IN ('done', 'failed', 'cancelled')
    )
ORDER BY run_key LIMIT ?4

-- == workers =========================================================================================================

-- name: register_worker
INSERT INTO workers (worker_id, host, pid, started, heartbeat_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (worker_id) DO UPDATE SET
    host = excluded.host, pid = excluded.pid, started = excluded.started, heartbeat_at = excluded.heartbeat_at

-- name: deregister_worker
DELETE FROM workers WHERE worker_id = ?1

-- name: get_worker
SELECT worker_id, host, pid, started, heartbeat_at FROM workers WHERE worker_id = ?1

-- name: list_workers
SELECT worker_id, host, pid, started, heartbeat_at FROM workers
