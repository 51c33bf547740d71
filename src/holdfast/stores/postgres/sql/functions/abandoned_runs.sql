-- The running runs whose workers are dead, as far as they may be claimed and have a slot.
create or replace function holdfast.abandoned_runs(
    p_agents text[], p_full_keys text[], p_but_not bigint[], p_here text, p_dead text[], p_limit bigint
) returns setof holdfast.run
language sql stable as $$
    select r.*
    from holdfast.run r
    where r.status = 'running'
        and r.not_before <= now()
        and holdfast.is_candidate(r, p_agents, p_full_keys, p_but_not)
        and not exists (
            select from holdfast.worker w where w.worker_id = r.owner and holdfast.lives(w, p_here, p_dead)
        )
    order by r.created_at
    limit p_limit
$$;
