-- Insert a run: running and claimed by a worker, or queued.
create or replace function holdfast.create_run(p jsonb, out key bigint, out answer jsonb)
language plpgsql as $$
declare
    claimed boolean := p ->> 'worker_id' is not null;
    new_token bigint := 0;
begin
    if claimed then
        new_token := nextval('holdfast.token');
        answer := jsonb_build_object('token', new_token, 'strikes', 1);
    end if;
    insert into holdfast.run (
        run_id, agent_name, caller_id, parent_run_id, status, owner, token, strikes, not_before,
        next_seq, size, meta, progress
    )
    values (
        p ->> 'run_id', p ->> 'agent_name', p ->> 'caller_id', p ->> 'parent_run_id',
        case when claimed then 'running' else 'queued' end, p ->> 'worker_id', new_token, claimed::integer,
        now() + make_interval(secs => (p ->> 'wait')::float8),
        (p ->> 'count')::bigint, (p ->> 'size')::bigint,
        decode(p ->> 'meta', 'base64'), decode(p ->> 'progress', 'base64')
    )
    on conflict (run_id) do nothing
    returning id into key;
    if key is null then
        answer := jsonb_build_object('error', 'exists');
    end if;
end
$$;
