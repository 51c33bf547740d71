-- Mail, waiting runs, labels, and pages of runs in any order of filters. `write_batch` and its older callers stay as they
-- are: an append that consumes mail is one of the other operations.

alter table holdfast.run
    -- From when on a worker may take the run: set while it is queued, interrupted, or waiting for a time. An append does
    -- not change it, so that its update stays HOT.
    add column due_at timestamptz,
    add column wake_at timestamptz,
    add column wake_on text[] not null default '{}',
    -- Whether the run has unread mail.
    add column has_mail boolean not null default false,
    add column labels jsonb not null default '{}';

update holdfast.run set due_at = not_before where status in ('queued', 'interrupted');

drop index holdfast.run_waiting;
drop index holdfast.run_parent;

-- To claim. A run that waits for mail alone is in none of them. Names are cut: an index entry has at most 2.7 kB.
create index run_due on holdfast.run (left(agent_name, 200), due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;
create index run_due_caller on holdfast.run (left(caller_id, 200), due_at)
    where status in ('queued', 'interrupted', 'waiting') and due_at is not null;
create index run_mail on holdfast.run (owner) where has_mail and status = 'running';

-- To list, newest first, with any one filter.
create index run_created on holdfast.run (created_at, id);
create index run_status on holdfast.run (status, created_at);
create index run_agent on holdfast.run (left(agent_name, 200), created_at);
create index run_caller on holdfast.run (left(caller_id, 200), created_at);
create index run_parent on holdfast.run (parent_run_id, created_at) where parent_run_id is not null;

-- A row for each label of a run: the key of the label (see `label_key`), and the run.
create table holdfast.run_label (
    label bigint not null,
    created_at timestamptz not null,
    run bigint not null,
    primary key (label, created_at, run)
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
