-- End a claim and set the status of the run.
create or replace function holdfast.settle_run(p jsonb, out key bigint, out answer jsonb)
language plpgsql as $$
begin
    update holdfast.run r set
        status = p ->> 'status',
        reason = p ->> 'reason',
        strikes = (p ->> 'strikes')::integer,
        not_before = now() + make_interval(secs => (p ->> 'delay')::float8),
        expires_at = now() + make_interval(secs => (p ->> 'keep')::float8),
        progress = coalesce(decode(p ->> 'progress', 'base64'), r.progress),
        next_seq = r.next_seq + (p ->> 'count')::bigint,
        size = r.size + (p ->> 'size')::bigint,
        cancel_requested = r.cancel_requested and p ->> 'status' not in ('done', 'failed', 'cancelled'),
        updated_at = now()
    where r.run_id = p ->> 'run_id' and r.token = (p ->> 'token')::bigint
        and r.status || '' = 'running' -- as in `write_batch`
        and r.next_seq = coalesce((p ->> 'first')::bigint, r.next_seq)
    returning r.id into key;
    if key is null then
        answer := holdfast.refusal(p ->> 'run_id', (p ->> 'token')::bigint);
    end if;
end
$$;
