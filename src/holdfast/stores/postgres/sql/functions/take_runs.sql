-- Claim up to `limit` of the runs that are ready, in their order. Skips runs that other workers claim meanwhile.
create or replace function holdfast.take_runs(p jsonb) returns jsonb
language plpgsql as $$
declare
    taken jsonb := '[]';
    chosen record;
begin
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
