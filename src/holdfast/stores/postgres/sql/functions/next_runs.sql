-- The runs that may be claimed now, highest priority first. Within one: the oldest of each caller, then the second oldest of
-- each, and so on. Leaves out runs whose limit is reached.
--
-- Considers the `p_window` runs of each agent and priority that have been due the longest. If they have fewer than
-- `p_callers` callers, considers all callers.
create or replace function holdfast.next_runs(
    p_agents text[], p_but_not bigint[], p_limit bigint, p_callers bigint, p_here text, p_dead text[], p_window bigint
) returns setof bigint
language plpgsql stable
-- Without fresh statistics the planner expects hardly any due runs, collects all of them, and sorts.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
-- A disabled scan counts as so expensive that the server would compile the plan, for 300 ms.
set jit = off
-- To plan each call for its full keys takes longer than such a plan saves.
set plan_cache_mode = force_generic_plan
as $$
declare
    agents text[] := array(select distinct unnest(p_agents));
    full_keys text[] := '{}';
    full_agents text[];
    orphans holdfast.run[];
    wanted bigint := p_limit;
    level smallint;
    found_ids bigint[];
    seen bigint;
    callers bigint;
begin
    if exists (select from holdfast.run_limit) then
        select coalesce(array_agg(s.name) filter (where s.kind = 'key'), '{}'),
            coalesce(array_agg(s.name) filter (where s.kind = 'agent'), '{}')
        into full_keys, full_agents
        from holdfast.slots(p_here, p_dead) s where s.used >= s.max_runs;
        agents := array(select a.name from unnest(agents) a (name) where a.name <> all (full_agents));
    end if;
    orphans := array(select o from holdfast.abandoned_runs(agents, full_keys, p_but_not, p_here, p_dead, p_window) o);
    for level in
        select distinct p.priority
        from (
            select holdfast.due_priorities(a.name) from unnest(agents) a (name)
            union all
            select o.priority from unnest(orphans) o
        ) p (priority)
        order by p.priority desc
    loop
        select w.ids, w.seen, w.callers into found_ids, seen, callers
        from holdfast.oldest_due(agents, full_keys, p_but_not, level, orphans, wanted, p_window) w;
        if seen >= p_window and callers < p_callers then
            found_ids := holdfast.due_by_lane(agents, full_keys, p_but_not, level, orphans, wanted, p_callers);
        end if;
        return query select unnest(found_ids);
        wanted := wanted - cardinality(found_ids);
        exit when wanted <= 0;
    end loop;
end
$$;

-- The priorities of the runs of one agent that are due now or later. Skips from one to the next.
create or replace function holdfast.due_priorities(p_agent text) returns setof smallint
language plpgsql stable as $$
declare
    level smallint := 32767;
begin
    loop
        select r.priority into level
        from holdfast.run r
        where left(r.agent_name, 200) = left(p_agent, 200)
            and r.status in ('queued', 'interrupted', 'waiting')
            and r.due_at is not null
            and r.priority < level
        -- By the time too: only the index of the agent has that order. By priority alone, the planner may read all lanes.
        order by r.priority desc, r.due_at desc
        limit 1;
        exit when not found;
        return next level;
    end loop;
end
$$;

-- The candidates of one priority among the `p_window` runs of each agent that have been due the longest. `seen` is the
-- largest number of runs that were considered for an agent, and `callers` the number of callers of the candidates.
create or replace function holdfast.oldest_due(
    p_agents text[], p_full_keys text[], p_but_not bigint[], p_level smallint, p_orphans holdfast.run[], p_limit bigint,
    p_window bigint, out ids bigint[], out seen bigint, out callers bigint
)
language plpgsql stable as $$
begin
    with due as materialized (
        select a.name, d.id, d.caller_id, d.concurrency_key
        from unnest(p_agents) a (name) cross join lateral (
            select r.id, r.caller_id, r.concurrency_key
            from holdfast.run r
            where left(r.agent_name, 200) = left(a.name, 200)
                and r.priority = p_level
                and r.status in ('queued', 'interrupted', 'waiting')
                and r.due_at <= now()
                and holdfast.is_candidate(r, array[a.name], '{}', p_but_not)
            order by r.due_at
            limit p_window
        ) d
    ),
    ready as materialized (
        select f.id, row_number() over (partition by f.caller_id order by f.id) as turn
        from (
            select d.id, d.caller_id
            from due d
            where d.concurrency_key is null or d.concurrency_key not in (select unnest(p_full_keys))
            union all
            select o.id, o.caller_id from unnest(p_orphans) o where o.priority = p_level
        ) f
    )
    select array(select r.id from ready r order by r.turn, r.id limit p_limit),
        coalesce((select max(n.seen) from (select count(*) as seen from due d group by d.name) n), 0),
        (select count(*) from ready r where r.turn = 1)
    into ids, seen, callers;
end
$$;

-- As `oldest_due`, but with the runs of every lane that have been due the longest. For the case that the runs that have been
-- due the longest belong to a few callers, or have no slot. Walks from the first run of a lane to the first run of the next:
-- one index lookup for each lane. Looks up further runs only if there are fewer than `p_callers` callers.
create or replace function holdfast.due_by_lane(
    p_agents text[], p_full_keys text[], p_but_not bigint[], p_level smallint, p_orphans holdfast.run[], p_limit bigint,
    p_callers bigint
) returns bigint[]
language plpgsql stable as $$
declare
    -- Lanes have names that are cut. If the cut name of a full key is its whole name, the lane has no other key.
    long_keys text[] := array(select k from unnest(p_full_keys) k where length(k) >= 200);
begin
    return array(
        with recursive first (id, due_at, caller, key) as (
            (
                select r.id, r.due_at, left(r.caller_id, 200), left(coalesce(r.concurrency_key, ''), 200)
                from holdfast.run r
                where r.priority = p_level and r.status in ('queued', 'interrupted', 'waiting') and r.due_at is not null
                order by left(r.caller_id, 200), left(coalesce(r.concurrency_key, ''), 200), r.due_at
                limit 1
            )
            union all
            select next.*
            from first cross join lateral (
                select r.id, r.due_at, left(r.caller_id, 200), left(coalesce(r.concurrency_key, ''), 200)
                from holdfast.run r
                where r.priority = p_level and r.status in ('queued', 'interrupted', 'waiting') and r.due_at is not null
                    and (left(r.caller_id, 200), left(coalesce(r.concurrency_key, ''), 200)) > (first.caller, first.key)
                order by left(r.caller_id, 200), left(coalesce(r.concurrency_key, ''), 200), r.due_at
                limit 1
            ) next
        ),
        -- The oldest candidate of each lane: almost always its first run.
        oldest as materialized (
            select lane.caller, lane.key, due.id, due.caller_id,
                row_number() over (partition by due.caller_id order by due.id) as turn
            from first lane cross join lateral (
                select r.id, r.caller_id
                from holdfast.run r
                where r.id = lane.id and holdfast.is_candidate(r, p_agents, long_keys, p_but_not)
                union all
                select r.id, r.caller_id
                from holdfast.lane_candidates(p_agents, long_keys, p_but_not, p_level, lane.caller, lane.key, 1) r
                limit 1
            ) due
            where lane.due_at <= now()
                and lane.key not in (select k from unnest(p_full_keys) k where length(k) < 200)
        )
        select ready.id
        from (
            select found.id, row_number() over (partition by found.caller_id order by found.id) as turn
            from (
                select o.id, o.caller_id from oldest o
                union
                -- The next runs of a caller are in the lanes that have its oldest runs.
                select r.id, r.caller_id
                from oldest o cross join lateral holdfast.lane_candidates(
                    p_agents, long_keys, p_but_not, p_level, o.caller, o.key, p_limit - o.turn + 1
                ) r
                where o.turn <= p_limit and (select count(*) from oldest where turn = 1) < p_callers
                union all
                select o.id, o.caller_id from unnest(p_orphans) o where o.priority = p_level
            ) found
        ) ready
        order by ready.turn, ready.id
        limit p_limit
    );
end
$$;

-- The candidates of one lane that have been due the longest.
create or replace function holdfast.lane_candidates(
    p_agents text[], p_full_keys text[], p_but_not bigint[], p_level smallint, p_caller text, p_key text, p_limit bigint
) returns table (id bigint, caller_id text)
language sql stable as $$
    select r.id, r.caller_id
    from holdfast.run r
    where r.priority = p_level
        and left(r.caller_id, 200) = p_caller
        and left(coalesce(r.concurrency_key, ''), 200) = p_key
        and r.status in ('queued', 'interrupted', 'waiting')
        and r.due_at <= now()
        and holdfast.is_candidate(r, p_agents, p_full_keys, p_but_not)
    order by r.due_at
    limit p_limit
$$;
