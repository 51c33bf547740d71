-- Claim up to `limit` of the runs that are ready, in their order. Skips runs that other workers claim meanwhile.
create or replace function holdfast.take_runs(p jsonb) returns jsonb
language plpgsql as $$
declare
    taken jsonb := '[]';
    chosen record;
begin
    if exists (select from holdfast.run_limit) then
        return holdfast.take_limited_runs(p);
    end if;
    for chosen in
        select r.id
        from jsonb_array_elements(p -> 'ids') with ordinality as wanted (id, turn)
        join holdfast.run r on r.id = wanted.id::bigint
        where holdfast.ready(r, p ->> 'here', array(select jsonb_array_elements_text(p -> 'dead')))
        order by wanted.turn
        limit (p ->> 'limit')::bigint
        for update of r skip locked
    loop
        taken := taken || holdfast.take_run(chosen.id, p ->> 'worker_id', p -> 'backoff');
    end loop;
    return jsonb_build_object('taken', taken);
end
$$;

-- The same within the limits. Locks them first, so that the slots are counted by one claim after the other. A caller whose
-- run has no slot has its turn with the next one.
create or replace function holdfast.take_limited_runs(p jsonb) returns jsonb
language plpgsql as $$
declare
    dead text[] := array(select jsonb_array_elements_text(p -> 'dead'));
    taken jsonb := '[]';
    ids bigint[];
    priorities smallint[];
    callers text[];
    agents text[];
    keys text[];
    free jsonb;
    turns jsonb := '{}';
    caller text;
    done boolean[];
    pick integer;
begin
    -- A child executes in the slot of its parent, unless it runs in the background.
    select array_agg(r.id order by wanted.turn), array_agg(r.priority order by wanted.turn),
        array_agg(r.caller_id order by wanted.turn),
        array_agg(case when r.parent_run_id is null or r.background then r.agent_name end order by wanted.turn),
        array_agg(case when r.parent_run_id is null or r.background then r.concurrency_key end order by wanted.turn)
    into ids, priorities, callers, agents, keys
    from jsonb_array_elements(p -> 'ids') with ordinality as wanted (id, turn)
    join holdfast.run r on r.id = wanted.id::bigint;
    perform holdfast.lock_limits(agents, keys);
    select coalesce(jsonb_object_agg(s.kind || ':' || s.name, s.max_runs - s.used), '{}') into free
    from holdfast.slots(p ->> 'here', dead) s;
    done := array_fill(false, array[coalesce(cardinality(ids), 0)]);
    while jsonb_array_length(taken) < (p ->> 'limit')::bigint loop
        select i into pick
        from generate_subscripts(ids, 1) as i
        where not done[i]
            and coalesce((free ->> ('agent:' || agents[i]))::bigint, 1) > 0
            and coalesce((free ->> ('key:' || keys[i]))::bigint, 1) > 0
        order by priorities[i] desc, coalesce((turns ->> (priorities[i] || ' ' || callers[i]))::bigint, 0), i
        limit 1;
        exit when not found;
        done[pick] := true;
        perform from holdfast.run r
        where r.id = ids[pick] and holdfast.ready(r, p ->> 'here', dead)
        for update skip locked;
        if found then
            taken := taken || holdfast.take_run(ids[pick], p ->> 'worker_id', p -> 'backoff');
            caller := priorities[pick] || ' ' || callers[pick];
            turns := turns || jsonb_build_object(caller, coalesce((turns ->> caller)::bigint, 0) + 1);
            free := holdfast.use_slot(holdfast.use_slot(free, 'agent:' || agents[pick]), 'key:' || keys[pick]);
        end if;
    end loop;
    return jsonb_build_object('taken', taken);
end
$$;

-- One slot less under this name, if there is a limit of this name.
create or replace function holdfast.use_slot(p_free jsonb, p_name text) returns jsonb
language sql immutable as $$
    select case
        when p_free ? p_name then p_free || jsonb_build_object(p_name, (p_free ->> p_name)::bigint - 1)
        else p_free
    end
$$;
