-- The running runs whose workers are dead, as far as they may be claimed.
create or replace function holdfast.orphans(
    p_agents text[], p_but_not bigint[], p_here text, p_dead text[], p_limit bigint
) returns table (id bigint, caller_id text)
language sql stable as $$
    select r.id, r.caller_id
    from holdfast.run r
    where r.status = 'running'
        and r.not_before <= now()
        and r.agent_name = any (p_agents)
        and r.id <> all (p_but_not)
        and not exists (
            select from holdfast.worker w where w.worker_id = r.owner and holdfast.lives(w, p_here, p_dead)
        )
        and (r.parent_run_id is null or not exists (
            select from holdfast.run parent
            where parent.run_id = r.parent_run_id and parent.status not in ('done', 'failed', 'cancelled')
        ))
    order by r.created_at
    limit p_limit
$$;
