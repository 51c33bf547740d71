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
    -- Whether the run has unread mail.
    has_mail boolean not null default false,
    priority smallint not null default 0,
    -- Whether workers may claim a child although its parent has not ended.
    background boolean not null default false,
    status text collate "C" not null,
    run_id text collate "C" not null unique,
    -- From when on a worker may take the run: set while it is queued, interrupted, or waiting for a time. An append does
    -- not change it, so that its update stays HOT.
    due_at timestamptz,
    wake_at timestamptz,
    expires_at timestamptz,
    parent_run_id text collate "C",
    owner text collate "C",
    agent_name text collate "C" not null,
    caller_id text collate "C" not null,
    -- Empty: the run has no tenant.
    tenant text collate "C" not null default '',
    concurrency_key text collate "C",
    reason text not null default '',
    wake_on text[] not null default '{}',
    labels jsonb not null default '{}',
    info bytea not null,
    progress bytea not null
)
-- Free space for the next version of each row: a save changes no indexed column, so its update is HOT.
with (fillfactor = 45);

create index run_cancelled on holdfast.run (id) where cancel_requested;
create index run_expiring on holdfast.run (expires_at) where expires_at is not null;

-- To claim. A run that waits for mail alone is in none of them. Names are cut: an index entry has at most 2.7 kB.
create index run_due on holdfast.run (left(agent_name, 200), priority, due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;
-- The runs of one caller with the same key are a lane: either all of them have a slot of the key, or none.
create index run_due_lane on holdfast.run (priority, left(caller_id, 200), left(coalesce(concurrency_key, ''), 200), due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;
create index run_mail on holdfast.run (owner) where has_mail and status = 'running';

-- To list, newest first, with any one filter.
create index run_created on holdfast.run (created_at, id);
create index run_status on holdfast.run (status, created_at);
create index run_agent on holdfast.run (left(agent_name, 200), created_at);
create index run_caller on holdfast.run (left(caller_id, 200), created_at);
create index run_tenant on holdfast.run (left(tenant, 200), created_at) where tenant <> '';
create index run_parent on holdfast.run (parent_run_id, created_at) where parent_run_id is not null;

-- A row for each label of a run: the key of the label (see `label_key`), and the run.
create table holdfast.run_label (
    label bigint not null,
    created_at timestamptz not null,
    run bigint not null,
    primary key (label, created_at, run)
);

-- The journals. The entries of one write are one segment, a row: a row costs about the same whatever its size. A segment
-- that does not fit into the rest of a page is split there, so that pages are full.
-- No foreign key: `write_batch` writes every segment after it has locked the run, and a check per row costs time.
create table holdfast.segment (
    -- Of the rest of a split segment: the negative of its run.
    run bigint not null,
    -- The number of the first entry.
    seq bigint not null,
    -- Kind (a letter) and length of each entry, such as 'm1040 m1012 s98'; `body` concatenates their bodies.
    -- Begins with a plus sign if the segment is split, and is empty for its rest.
    layout text collate "C" not null,
    checksum bigint not null,
    body bytea not null,
    primary key (run, seq)
)
-- A body of some kilobytes stays in its row, a longer one goes to TOAST. Neither is compressed: not worth its cost.
with (toast_tuple_target = 8160);
alter table holdfast.segment alter column body set storage external;
-- Statistics about bodies help no plan.
alter table holdfast.segment alter column body set statistics 0;

-- Segments that belong to no run: all of `run` with a `seq` below `below`. `sweep` deletes them in slices.
create table holdfast.garbage (
    id bigint generated always as identity primary key,
    run bigint not null,
    below bigint not null
);

-- `body` is empty once the mail is consumed: the entry that used it has the content.
create table holdfast.mail (
    id bigint generated always as identity primary key,
    run bigint not null,
    posted_at timestamptz not null default now(),
    consumed boolean not null default false,
    mail_id text collate "C" not null,
    topic text collate "C" not null,
    body bytea not null,
    unique (run, mail_id)
);
create index mail_unread on holdfast.mail (run, id) where not consumed;

-- Replies in progress, for watchers. Unlogged: they cost no WAL, and are empty after a crash of the server.
create unlogged table holdfast.draft (
    run bigint primary key,
    -- Of the claim under which it was put: a draft of an earlier claim is void.
    token bigint not null,
    body bytea not null
);

-- Runs whose drafts another process watches.
create unlogged table holdfast.draft_request (
    run_id text collate "C" primary key,
    until timestamptz not null
);

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
