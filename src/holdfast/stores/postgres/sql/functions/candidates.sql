-- The runs that may be claimed now: the oldest of each caller, then the second oldest of each, and so on. Considers the
-- `p_window` runs of each agent that have been due the longest, or all if that is null; `seen` is their number, and `callers`
-- the number of their callers.
create or replace function holdfast.candidates(
    p_agents text[], p_but_not bigint[], p_limit bigint, p_here text, p_dead text[], p_window bigint
) returns table (id bigint, seen bigint, callers bigint)
language plpgsql stable
-- Without fresh statistics the planner expects hardly any due runs, collects all of them, and sorts.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
-- A disabled scan counts as so expensive that the server would compile the plan, for 300 ms.
set jit = off
as $$
begin
    return query
    select ready.id, count(*) over (), count(*) filter (where ready.turn = 1) over ()
    from (
        select found.id, row_number() over (partition by found.caller_id order by found.id) as turn
        from (
            select due.id, due.caller_id
            from (select distinct unnest(p_agents)) as agent (name) cross join lateral (
                select r.id, r.caller_id
                from holdfast.run r
                where left(r.agent_name, 200) = left(agent.name, 200)
                    and r.agent_name = agent.name
                    and r.status in ('queued', 'interrupted', 'waiting')
                    and r.due_at <= now()
                    and r.id <> all (p_but_not)
                    and (r.parent_run_id is null or not exists (
                        select from holdfast.run parent
                        where parent.run_id = r.parent_run_id and parent.status not in ('done', 'failed', 'cancelled')
                    ))
                order by r.due_at
                limit p_window
            ) due
            union all
            select orphan.id, orphan.caller_id
            from holdfast.orphans(p_agents, p_but_not, p_here, p_dead, p_window) orphan
        ) found
    ) ready
    order by ready.turn, ready.id
    limit p_limit;
end
$$;
