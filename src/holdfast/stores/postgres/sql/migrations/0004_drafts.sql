-- Replies under way, for watchers. Unlogged: they cost no WAL, and are empty after a crash of the server.
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
