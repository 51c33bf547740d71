-- Register these workers, or renew their leases. A schema that began with version 1 also has the function of that version,
-- without the agents: its workers may still call it.
create or replace function holdfast.beat(
    p_worker_ids text[], p_hosts text[], p_pids bigint[], p_started text[], p_agents text[], p_dead_after float8
) returns void
language sql as $$
    insert into holdfast.worker (worker_id, host, pid, started, alive_until, dead_after, agents)
    select w.worker_id, w.host, w.pid, w.started, now() + dead.after, dead.after, w.agents
    from unnest(p_worker_ids, p_hosts, p_pids, p_started, p_agents) as w (worker_id, host, pid, started, agents),
        make_interval(secs => p_dead_after) as dead (after)
    on conflict (worker_id) do update
    set alive_until = excluded.alive_until, dead_after = excluded.dead_after, agents = excluded.agents
$$;
