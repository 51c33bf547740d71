-- Register these workers, or renew their leases.
create or replace function holdfast.beat(
    p_worker_ids text[], p_hosts text[], p_pids bigint[], p_started text[], p_dead_after float8
) returns void
language sql as $$
    insert into holdfast.worker (worker_id, host, pid, started, alive_until, dead_after)
    select w.worker_id, w.host, w.pid, w.started, now() + dead.after, dead.after
    from unnest(p_worker_ids, p_hosts, p_pids, p_started) as w (worker_id, host, pid, started),
        make_interval(secs => p_dead_after) as dead (after)
    on conflict (worker_id) do update set alive_until = excluded.alive_until, dead_after = excluded.dead_after
$$;
