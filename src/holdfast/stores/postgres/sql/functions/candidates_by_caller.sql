-- As `candidates`, but with the runs of every caller that have been due the longest: one index lookup for each caller. For
-- the case that the runs that have been due the longest belong to a few callers.
create or replace function holdfast.candidates_by_caller(
    p_agents text[], p_but_not bigint[], p_limit bigint, p_here text, p_dead text[]
) returns table (id bigint)
language plpgsql stable
-- As for `candidates`.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
begin
    return query
    with recursive caller (name) as (
        select (
            select left(r.caller_id, 200) from holdfast.run r
            where r.status in ('queued', 'interrupted', 'waiting') and r.due_at is not null
            order by left(r.caller_id, 200) limit 1
        )
        union all
        select (
            select left(r.caller_id, 200) from holdfast.run r
            where r.status in ('queued', 'interrupted', 'waiting') and r.due_at is not null
                and left(r.caller_id, 200) > caller.name
            order by left(r.caller_id, 200) limit 1
        )
        from caller where caller.name is not null
    )
    select ready.id
    from (
        select found.id, row_number() over (partition by found.caller_id order by found.id) as turn
        from (
            select due.id, due.caller_id
            from caller cross join lateral (
                select r.id, r.caller_id
                from holdfast.run r
                where left(r.caller_id, 200) = caller.name
                    and r.agent_name = any (p_agents)
                    and r.status in ('queued', 'interrupted', 'waiting')
                    and r.due_at <= now()
                    and r.id <> all (p_but_not)
                    and (r.parent_run_id is null or not exists (
                        select from holdfast.run parent
                        where parent.run_id = r.parent_run_id and parent.status not in ('done', 'failed', 'cancelled')
                    ))
                order by r.due_at
                limit p_limit
            ) due
            union all
            select orphan.id, orphan.caller_id
            from holdfast.orphans(p_agents, p_but_not, p_here, p_dead, p_limit) orphan
        ) found
    ) ready
    order by ready.turn, ready.id
    limit p_limit;
end
$$;
