-- A page of records, newest first by creation or oldest first, with the key of each in that order.
--
-- The statement is built with the values of the filters in `p`, and so planned for them: which index is the best depends on
-- how frequent a value is.
create or replace function holdfast.list_runs(p jsonb, p_here text, p_dead text[])
returns table (encoded text, created_at timestamptz, id bigint)
language plpgsql stable
-- Few rows are read, whatever the planner expects.
set jit = off
as $$
declare
    newest_first boolean := (p ->> 'newest_first')::boolean;
    direction text := case when newest_first then 'desc' else 'asc' end;
    statement text := 'select holdfast.record(r, w)::text, r.created_at, r.id from holdfast.run r'
        ' left join holdfast.worker w on w.worker_id = r.owner and r.status = ''running''';
    conditions text := '';
begin
    select statement || coalesce(string_agg(
        format(
            ' join holdfast.run_label l%1$s on l%1$s.run = r.id and l%1$s.created_at = r.created_at and l%1$s.label = %2$s',
            l.turn, holdfast.label_key(l.key, l.value)
        ), ''
    ), '')
    into statement
    from jsonb_each_text(p -> 'labels') with ordinality as l (key, value, turn);

    select string_agg(c.condition, ' and ') into conditions
    from (values
        (true, 'true'),
        (p -> 'labels' <> '{}', format('r.labels @> %L', p -> 'labels')),
        -- Not the array itself: the planner knows the frequency of each status.
        (p ? 'statuses', 'r.status = any (' || quote_literal(array(
            select jsonb_array_elements_text(p -> 'statuses'))) || ')'),
        (p ? 'agent_name', format(
            'left(r.agent_name, 200) = %L and r.agent_name = %L', left(p ->> 'agent_name', 200), p ->> 'agent_name')),
        (p ? 'caller_id', format(
            'left(r.caller_id, 200) = %L and r.caller_id = %L', left(p ->> 'caller_id', 200), p ->> 'caller_id')),
        (p ? 'parent_run_id', format('r.parent_run_id = %L', p ->> 'parent_run_id')),
        (p ? 'created_after', format('r.created_at >= %L', p ->> 'created_after')),
        (p ? 'created_before', format('r.created_at < %L', p ->> 'created_before')),
        ((p ->> 'interrupted')::boolean,
            'r.status in (''queued'', ''running'', ''interrupted'') and not exists (select from holdfast.worker o'
            ' where o.worker_id = r.owner and r.status = ''running'' and holdfast.lives(o, $1, $2))'),
        (p ? 'from_id', format(
            'r.created_at %1$s= %2$L and (r.created_at, r.id) %1$s (%2$L, %3$s)',
            case when newest_first then '<' else '>' end, p ->> 'from_time', (p ->> 'from_id')::bigint))
    ) as c (wanted, condition)
    where c.wanted;

    return query execute format(
        '%s where %s order by r.created_at %s, r.id %3$s limit %s',
        statement, conditions, direction, (p ->> 'limit')::bigint
    ) using p_here, p_dead;
end
$$;
