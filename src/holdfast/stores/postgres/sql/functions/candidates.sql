-- The runs that may be claimed now: the oldest of each caller, then the second oldest of each, and so on. Considers the
-- oldest `p_window` runs, or all if that is null; `seen` is their number, and `callers` the number of their callers.
create or replace function holdfast.candidates(
    p_agents text[], p_but_not bigint[], p_limit bigint, p_here text, p_dead text[], p_window bigint
) returns table (id bigint, seen bigint, callers bigint)
language plpgsql stable
-- Without fresh statistics the planner expects hardly any waiting runs, collects all of them, and sorts.
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
        select oldest.id, row_number() over (partition by oldest.caller_id order by oldest.id) as turn
        from (
            select r.id, r.caller_id
            from holdfast.run r
            where r.status in ('queued', 'running', 'interrupted')
                and r.not_before <= now()
                and r.agent_name = any (p_agents)
                and r.id <> all (p_but_not)
                -- As in `ready`, but as a join instead of a call for each run.
                and not exists (
                    select from holdfast.worker w
                    where w.worker_id = r.owner and r.status = 'running' and holdfast.lives(w, p_here, p_dead)
                )
                and (r.parent_run_id is null or not exists (
                    select from holdfast.run parent
                    where parent.run_id = r.parent_run_id and parent.status not in ('done', 'failed', 'cancelled')
                ))
            order by r.id
            limit p_window
        ) oldest
    ) ready
    order by ready.turn, ready.id
    limit p_limit;
end
$$;
