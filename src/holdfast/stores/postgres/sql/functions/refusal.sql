-- Why a write under a claim is refused: the claim is lost, or the entries are out of order.
create or replace function holdfast.refusal(p_run_id text, p_token bigint) returns jsonb
language sql stable as $$
    select coalesce(
        (
            select case
                when r.token <> p_token then jsonb_build_object('error', 'lost', 'token', r.token)
                when r.status <> 'running' then jsonb_build_object('error', 'lost', 'token', null)
                else jsonb_build_object('error', 'order', 'due', r.next_seq)
            end
            from holdfast.run r
            where r.run_id = p_run_id
        ),
        jsonb_build_object('error', 'lost', 'token', null)
    )
$$;
