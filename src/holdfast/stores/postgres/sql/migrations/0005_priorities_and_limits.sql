-- Priorities, and concurrency limits by agent and by key. New columns have constants as defaults, so no row is rewritten.
alter table holdfast.run
    add column priority smallint not null default 0,
    add column limit_key text collate "C";

drop index holdfast.run_due;
drop index holdfast.run_due_caller;
create index run_due on holdfast.run (left(agent_name, 200), priority, due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;
-- The runs of one caller with the same key are a lane: either all of them have a slot of the key, or none.
create index run_due_lane on holdfast.run (priority, left(caller_id, 200), left(coalesce(limit_key, ''), 200), due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;

-- At most `max_runs` runs of an agent, or with a key, are running.
create table holdfast.run_limit (
    kind text collate "C" not null,
    name text collate "C" not null,
    max_runs integer not null,
    -- Set by an App at its start.
    is_default boolean not null,
    -- Counts claims. An update locks the limit, and makes concurrent claims of more isolated transactions fail.
    claims bigint not null default 0,
    primary key (kind, name)
)
with (fillfactor = 50);

-- It has further parameters now. Two functions of this name would make calls ambiguous.
drop function if exists holdfast.submit(text, text, text, jsonb, jsonb, text, timestamptz);
