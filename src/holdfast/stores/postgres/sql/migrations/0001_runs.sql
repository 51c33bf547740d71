-- The tables of a store. These files name the schema `holdfast`; the loader replaces it by another name.

-- Fencing tokens of claims. A sequence never goes back, so they also grow when a run id is removed and created again.
create sequence holdfast.token;

-- The columns that every save changes or compares come first: those behind a column of variable length are slow to find.
create table holdfast.run (
    -- Grows with every creation: the order of listings, and the key of the journal. A run id may be reused, this is not.
    id bigint generated always as identity primary key,
    token bigint not null default 0,
    -- The journal has the entries from `first_seq` up to, but not including, `next_seq`. All others are garbage.
    first_seq bigint not null default 0,
    next_seq bigint not null default 0,
    size bigint not null default 0,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    not_before timestamptz not null default now(),
    strikes integer not null default 0,
    cancel_requested boolean not null default false,
    status text collate "C" not null,
    run_id text collate "C" not null unique,
    expires_at timestamptz,
    parent_run_id text collate "C",
    owner text collate "C",
    agent_name text collate "C" not null,
    caller_id text collate "C" not null,
    reason text not null default '',
    meta bytea not null,
    progress bytea not null
)
-- Free space for the next version of each row: a save changes no indexed column, so its update is HOT.
with (fillfactor = 45);

create index run_waiting on holdfast.run (id) where status in ('queued', 'running', 'interrupted');
create index run_parent on holdfast.run (parent_run_id) where parent_run_id is not null;
create index run_cancelled on holdfast.run (id) where cancel_requested;
create index run_expiring on holdfast.run (expires_at) where expires_at is not null;

-- The journals. The entries of one write are one segment, a row: a row costs about the same whatever its size.
-- No foreign key: `write_batch` writes every segment after it has locked the run, and a check per row costs time.
create table holdfast.piece (
    run bigint not null,
    -- The number of the first entry.
    seq bigint not null,
    -- Kind (its first letter) and length of each entry, such as 'm1040 m1012 s98'; `body` concatenates their bodies.
    layout text collate "C" not null,
    checksum bigint not null,
    body bytea not null,
    primary key (run, seq)
)
-- A body of some kilobytes stays in its row, a longer one goes to TOAST. Neither is compressed: not worth its cost.
with (toast_tuple_target = 8160);
alter table holdfast.piece alter column body set storage external;

-- Segments that belong to no run: all of `run` with a `seq` below `below`. `sweep` deletes them in slices.
create table holdfast.garbage (
    id bigint generated always as identity primary key,
    run bigint not null,
    below bigint not null
);

-- A worker is alive while its row exists and, for other hosts, until `alive_until`.
create table holdfast.worker (
    worker_id text collate "C" primary key,
    host text collate "C" not null,
    pid bigint not null,
    started text not null,
    alive_until timestamptz not null,
    dead_after interval not null
)
with (fillfactor = 50);

-- One row for each store that writes: its newest batch and the answers. A batch that is sent again after its answer was
-- lost is answered from here.
create table holdfast.writer (
    writer_id uuid primary key,
    batch bigint not null,
    answers jsonb not null default '{}',
    used_at timestamptz not null default now()
)
with (fillfactor = 20);
