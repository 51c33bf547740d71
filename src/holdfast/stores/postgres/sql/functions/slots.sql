-- The limits, and how many slots of each are in use: by running runs that have a live owner, and no parent or run in the background.
create or replace function holdfast.slots(p_here text, p_dead text[])
returns table (kind text, name text, max_runs integer, is_default boolean, used bigint)
language sql stable as $$
    with held as materialized (
        select r.agent_name, r.concurrency_key
        from holdfast.run r join holdfast.worker w on w.worker_id = r.owner
        where r.status = 'running' and (r.parent_run_id is null or r.background) and holdfast.lives(w, p_here, p_dead)
    )
    select l.kind, l.name, l.max_runs, l.is_default, coalesce(u.used, 0)
    from holdfast.run_limit l
    left join (
        select 'agent' as kind, h.agent_name as name, count(*) as used from held h group by h.agent_name
        union all
        select 'key', h.concurrency_key, count(*) from held h where h.concurrency_key is not null group by h.concurrency_key
    ) u on u.kind = l.kind and u.name = l.name
$$;

-- Lock the limits of these agents and keys until the transaction ends. In one order, so that claims do not deadlock.
create or replace function holdfast.lock_limits(p_agents text[], p_keys text[]) returns boolean
language plpgsql as $$
begin
    perform from holdfast.run_limit l
    where (l.kind = 'agent' and l.name = any (p_agents)) or (l.kind = 'key' and l.name = any (p_keys))
    order by l.kind, l.name
    for update;
    if not found then
        return false;
    end if;
    update holdfast.run_limit l set claims = l.claims + 1
    where (l.kind = 'agent' and l.name = any (p_agents)) or (l.kind = 'key' and l.name = any (p_keys));
    return true;
end
$$;

-- Whether a run that the caller is about to claim has a slot of each of its limits, which this locks. A child executes in the
-- slot of its parent, unless it runs in the background.
create or replace function holdfast.has_slot(
    p_agent text, p_key text, p_parent text, p_background boolean, p_here text, p_dead text[]
) returns boolean
language plpgsql as $$
begin
    if (p_parent is not null and not p_background) or not holdfast.lock_limits(array[p_agent], array[p_key]) then
        return true;
    end if;
    return not exists (
        select from holdfast.slots(p_here, p_dead) s
        where s.used >= s.max_runs
            and ((s.kind = 'agent' and s.name = p_agent) or (s.kind = 'key' and s.name = p_key))
    );
end
$$;
