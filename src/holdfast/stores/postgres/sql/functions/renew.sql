-- Renew the leases of these workers, and return those that are still registered. One that another process deregistered
-- stays deregistered.
create or replace function holdfast.renew(p_worker_ids text[], p_dead_after float8) returns setof text
language sql as $$
    update holdfast.worker w set alive_until = now() + dead.after, dead_after = dead.after
    from make_interval(secs => p_dead_after) as dead (after)
    where w.worker_id = any (p_worker_ids)
    returning w.worker_id
$$;
