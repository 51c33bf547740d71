-- Everything a store keeps. Files here are written for the schema `holdfast`; another name is put in when they are read.

-- Tokens of claims. A sequence never goes back, so they grow over removal and re-creation of a run id as well.
create sequence holdfast.token;

-- What every save changes or compares comes first: what stands behind a column of variable length is costly to find.
create table holdfast.run (
    -- Grows with every creation: the order of listings, and the key of the journal. A run id may come again, this never.
    id bigint generated always as identity primary key,
    token bigint not null default 0,
    -- The journal is what has a `seq` from `first_seq` up to, not including, `next_seq`. Anything else is garbage.
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
-- Room beside each row for its next version, so that a save, which changes no indexed column, touches no index.
with (fillfactor = 45);

create index run_waiting on holdfast.run (id) where status in ('queued', 'running', 'interrupted');
create index run_parent on holdfast.run (parent_run_id) where parent_run_id is not null;
create index run_cancelled on holdfast.run (id) where cancel_requested;
create index run_expiring on holdfast.run (expires_at) where expires_at is not null;

-- The journals, in pieces: the entries of one write are one row, because a row costs about the same however much is in it.
-- No foreign key: every piece is written by `write_batch`, after it locked the run, and a check for each row costs.
create table holdfast.piece (
    run bigint not null,
    -- The number of its first entry.
    seq bigint not null,
    -- Kind, by its first letter, and length of each entry, such as 'm1040 m1012 s98'; the bodies are one behind the other.
    layout text collate "C" not null,
    checksum bigint not null,
    body bytea not null,
    primary key (run, seq)
)
-- A body of some kilobytes stays in its row. Longer ones go aside, neither is compressed: that costs more than the bytes.
with (toast_tuple_target = 8160);
alter table holdfast.piece alter column body set storage external;

-- Pieces that no run refers to any more: all of `run` with a `seq` below `below`. Deleted in slices by `sweep`.
create table holdfast.garbage (
    id bigint generated always as identity primary key,
    run bigint not null,
    below bigint not null
);

-- A worker is alive while its row is here and, seen from another host, until `alive_until`.
create table holdfast.worker (
    worker_id text collate "C" primary key,
    host text collate "C" not null,
    pid bigint not null,
    started text not null,
    alive_until timestamptz not null,
    dead_after interval not null
)
with (fillfactor = 50);

-- One row for each store that writes: its newest batch and what came of it. A batch that is sent again is answered from
-- here, so that a commit whose answer was lost is known, not guessed.
create table holdfast.writer (
    writer_id uuid primary key,
    batch bigint not null,
    answers jsonb not null default '{}',
    used_at timestamptz not null default now()
)
with (fillfactor = 20);
