-- Insert a run: running and claimed by a worker, or queued. It is also queued if there is a worker, but no slot.
create or replace function holdfast.create_run(p jsonb, out key bigint, out answer jsonb)
language plpgsql as $$
declare
    claimed boolean := p ->> 'worker_id' is not null;
    is_background boolean := coalesce((p ->> 'background')::boolean, false);
    due timestamptz := coalesce((p ->> 'not_before')::timestamptz, now());
    new_token bigint := 0;
    lock_key bigint := holdfast.id_lock(p ->> 'run_id');
begin
    -- A transaction of a user that has created this id may still be open: an insert would wait for its end, and with it all
    -- runs of the batch. Not held: a batch of many new runs would need many locks.
    if not pg_try_advisory_lock(lock_key) then
        answer := jsonb_build_object('error', 'locked');
        return;
    end if;
    perform pg_advisory_unlock(lock_key);
    -- Without the knowledge of which local workers are dead: their leases count.
    if claimed and (p ->> 'within_limits')::boolean and not holdfast.has_slot(
        p ->> 'agent_name', p ->> 'concurrency_key', p ->> 'parent_run_id', is_background, '', '{}'
    ) then
        claimed := false;
        answer := jsonb_build_object('queued', true);
    end if;
    if claimed then
        new_token := nextval('holdfast.token');
        answer := jsonb_build_object('token', new_token, 'strikes', 1);
    end if;
    insert into holdfast.run (
        run_id, agent_name, caller_id, parent_run_id, status, owner, token, strikes, not_before, due_at,
        next_seq, size, labels, info, progress, priority, concurrency_key, tenant, background
    )
    values (
        p ->> 'run_id', p ->> 'agent_name', p ->> 'caller_id', p ->> 'parent_run_id',
        case when claimed then 'running' else 'queued' end, case when claimed then p ->> 'worker_id' end, new_token, claimed::integer,
        case when claimed then now() + make_interval(secs => (p ->> 'wait')::float8) else due end,
        case when not claimed then due end,
        (p ->> 'count')::bigint, (p ->> 'size')::bigint, coalesce(p -> 'labels', '{}'),
        decode(p ->> 'info', 'base64'), decode(p ->> 'progress', 'base64'),
        coalesce((p ->> 'priority')::smallint, 0), p ->> 'concurrency_key', coalesce(p ->> 'tenant', ''), is_background
    )
    on conflict (run_id) do nothing
    returning id into key;
    if key is null then
        answer := jsonb_build_object('error', 'exists');
    elsif p -> 'labels' <> '{}' then
        insert into holdfast.run_label (label, created_at, run)
        select holdfast.label_key(l.key, l.value), now(), create_run.key from jsonb_each_text(p -> 'labels') l
        on conflict do nothing;
    end if;
end
$$;

-- The key of the lock that a transaction of a user holds on the id of a run that it has created.
create or replace function holdfast.id_lock(p_run_id text) returns bigint
language sql immutable as $$
    select hashtextextended('holdfast run ' || p_run_id, 0)
$$;
