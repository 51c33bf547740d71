-- A page of records, newest first by creation or oldest first, with the key of each in that order.
--
-- The statement is built with the values of the filters in `p`, and so planned for them: which index is the best depends on
-- how frequent a value is. Each status is a scan of its own, in the order of an index.
create or replace function holdfast.list_runs(p jsonb, p_here text, p_dead text[])
returns table (encoded text, created_at timestamptz, id bigint)
language plpgsql stable
-- In the order of an index, so that a page reads no more runs than it has to. A plan that collects all runs that fit, and
-- sorts, looks cheap to the planner until it has fresh statistics.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
-- As for `next_runs`.
set jit = off
as $$
declare
    newest_first boolean := (p ->> 'newest_first')::boolean;
    direction text := case when newest_first then 'desc' else 'asc' end;
    ending text := format('order by created_at %1$s, id %1$s limit %2$s', direction, (p ->> 'limit')::bigint);
    tables text;
    conditions text;
    scans text;
begin
    tables := 'holdfast.run r';
    if p -> 'labels' <> '{}' then
        -- One join, whatever the number of labels: with the label that the fewest runs have. `conditions` compares all.
        tables := tables || format(
            ' join holdfast.run_label l on l.run = r.id and l.created_at = r.created_at and l.label = %s',
            holdfast.rarest_label(p -> 'labels')
        );
    end if;

    select string_agg(c.condition, ' and ') into conditions
    from (values
        (p -> 'labels' <> '{}', format('r.labels @> %L', p -> 'labels')),
        (p ? 'agent_name', format(
            'left(r.agent_name, 200) = %L and r.agent_name = %L', left(p ->> 'agent_name', 200), p ->> 'agent_name')),
        (p ? 'caller_id', format(
            'left(r.caller_id, 200) = %L and r.caller_id = %L', left(p ->> 'caller_id', 200), p ->> 'caller_id')),
        (p ? 'tenant', format('left(r.tenant, 200) = %L and r.tenant = %L', left(p ->> 'tenant', 200), p ->> 'tenant')),
        (p ? 'parent_run_id', format('r.parent_run_id = %L', p ->> 'parent_run_id')),
        (p ? 'created_after', format('r.created_at >= %L', p ->> 'created_after')),
        (p ? 'created_before', format('r.created_at < %L', p ->> 'created_before')),
        ((p ->> 'interrupted')::boolean,
            'not exists (select from holdfast.worker o'
            ' where o.worker_id = r.owner and r.status = ''running'' and holdfast.lives(o, $1, $2))'),
        (p ? 'from_id', format(
            'r.created_at %1$s= %2$L and (r.created_at, r.id) %1$s (%2$L, %3$s)',
            case when newest_first then '<' else '>' end, p ->> 'from_time', (p ->> 'from_id')::bigint)),
        (true, 'true')
    ) as c (wanted, condition)
    where c.wanted;

    select string_agg(
        format('(select r.created_at, r.id from %s where %s and %s %s)', tables, conditions, s.condition, ending),
        ' union all '
    )
    into scans
    from (
        select 'true' where not p ? 'statuses'
        union all
        select format('r.status = %L', wanted) from jsonb_array_elements_text(p -> 'statuses') as wanted
    ) as s (condition);
    if scans is null then
        return; -- no status fits
    end if;

    return query execute format(
        'select holdfast.record(r, w)::text, r.created_at, r.id'
        ' from (select * from (%s) as found %s) as page join holdfast.run r using (id)'
        ' left join holdfast.worker w on w.worker_id = r.owner and r.status = ''running'''
        ' order by page.created_at %3$s, page.id %3$s',
        scans, ending, direction
    ) using p_here, p_dead;
end
$$;

-- The key of the label that the fewest runs have. Counts up to 2,000 runs of each.
create or replace function holdfast.rarest_label(p_labels jsonb) returns bigint
language plpgsql stable as $$
declare
    candidate bigint;
    rarest bigint;
    fewest bigint;
    runs bigint;
begin
    for candidate in select holdfast.label_key(l.key, l.value) from jsonb_each_text(p_labels) l loop
        select count(*) into runs from (select from holdfast.run_label k where k.label = candidate limit 2000) as counted;
        if fewest is null or runs < fewest then
            rarest := candidate;
            fewest := runs;
        end if;
        exit when fewest = 0;
    end loop;
    return rarest;
end
$$;
