-- Queue a run for any worker, from any language, in the transaction of the caller: the run exists if and only if the
-- transaction commits. Returns its id.
--
-- Idempotent: with the id of an earlier run of the same agent, prompt and inputs it changes nothing.
create or replace function holdfast.submit(
    agent text,
    prompt text,
    run_id text default null,
    inputs jsonb default '{}',
    labels jsonb default '{}',
    caller_id text default '',
    not_before timestamptz default null,
    priority integer default 0,
    concurrency_key text default null,
    tenant text default ''
) returns text
language plpgsql as $$
declare
    id text := coalesce(submit.run_id, replace(left(gen_random_uuid()::text, 18), '-', ''));
    info jsonb := jsonb_strip_nulls(jsonb_build_object(
        'run_id', id, 'agent_name', agent, 'caller_id', nullif(submit.caller_id, ''), 'prompt', prompt,
        'labels', nullif(labels, '{}'), 'inputs', nullif(inputs, '{}'),
        'priority', nullif(submit.priority, 0), 'concurrency_key', submit.concurrency_key, 'tenant', nullif(submit.tenant, '')
    ));
    body bytea := convert_to(jsonb_build_object('version', 1, 'info', info)::text, 'UTF8');
    layout text := 'b' || length(body);
    summary jsonb := jsonb_set(info, '{prompt}', to_jsonb(left(prompt, 200))) - 'inputs';
    found bytea;
    known jsonb;
begin
    if agent is null or prompt is null then
        raise exception 'holdfast.submit: agent and prompt must not be null';
    end if;
    if id !~ '^[A-Za-z0-9._:-]{1,200}$' then
        raise exception 'holdfast.submit: % cannot be a run id', quote_literal(id)
            using hint = 'Use 1 to 200 of the characters A-Z a-z 0-9 . _ : -';
    end if;
    if jsonb_typeof(inputs) <> 'object' or exists (select from jsonb_each(labels) l where jsonb_typeof(l.value) <> 'string') then
        raise exception 'holdfast.submit: inputs has to be an object, and labels an object of texts';
    end if;
    if submit.priority is null or submit.priority not between -10 and 10
        or length(submit.concurrency_key) not between 1 and 200 then
        raise exception 'holdfast.submit: priority has to be from -10 to 10, concurrency_key a text of 1 to 200 characters';
    end if;
    found := holdfast.queue_run(
        jsonb_build_object(
            'run_id', id,
            -- The columns escape backslashes, because a Python text may have characters that they cannot hold.
            'agent_name', replace(agent, '\', '\\'),
            'caller_id', replace(submit.caller_id, '\', '\\'),
            'labels', (
                select coalesce(jsonb_object_agg(replace(l.key, '\', '\\'), replace(l.value, '\', '\\')), '{}')
                from jsonb_each_text(labels) l
            ),
            'not_before', not_before,
            'priority', submit.priority, 'concurrency_key', replace(submit.concurrency_key, '\', '\\'),
            'tenant', replace(submit.tenant, '\', '\\'), 'count', 1, 'size', length(body),
            'info', encode(convert_to(summary::text, 'UTF8'), 'base64'),
            'progress', encode('{}', 'base64')
        ),
        layout, holdfast.crc32(convert_to(format('0 %s ', layout), 'UTF8') || body), body
    );
    if found is not null then
        known := convert_from(found, 'UTF8')::jsonb -> 'info';
        if known ->> 'agent_name' <> agent or coalesce(known ->> 'prompt', '') <> prompt
            or coalesce(known -> 'inputs', '{}') <> inputs then
            raise exception 'holdfast.submit: run % has another agent, prompt or inputs', id
                using errcode = 'unique_violation', hint = 'Use another run id.';
        end if;
    end if;
    return id;
end
$$;
