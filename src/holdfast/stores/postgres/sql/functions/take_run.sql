-- Give the claim on a run that the caller has locked to a worker. Counts the strike and starts the backoff.
create or replace function holdfast.take_run(p_id bigint, p_worker_id text, p_backoff jsonb) returns jsonb
language plpgsql as $$
declare
    answer jsonb;
begin
    update holdfast.run r set
        status = 'running',
        owner = p_worker_id,
        token = nextval('holdfast.token'),
        strikes = r.strikes + 1,
        not_before = now() + make_interval(
            secs => (p_backoff ->> least(r.strikes + 1, jsonb_array_length(p_backoff) - 1))::float8
        ),
        reason = '',
        due_at = null,
        wake_at = null,
        wake_on = '{}',
        expires_at = null,
        updated_at = now()
    from holdfast.run old
    where r.id = p_id and old.id = p_id
    returning jsonb_build_object(
        'run_id', r.run_id, 'token', r.token, 'strikes', r.strikes,
        'taken_from', case when old.status = 'running' then old.owner end
    ) into answer;
    return answer;
end
$$;
