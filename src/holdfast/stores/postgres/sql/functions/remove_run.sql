-- Delete one run and its descendants: under its claim, or if no live worker owns it.
create or replace function holdfast.remove_run(p jsonb) returns jsonb
language plpgsql as $$
declare
    held bigint := (p ->> 'token')::bigint;
    found_run record;
begin
    select r.id, r.token, r.status, r.owner into found_run
    from holdfast.run r where r.run_id = p ->> 'run_id' for update;
    if held is not null and held is distinct from found_run.token then
        return jsonb_build_object('error', 'lost', 'token', found_run.token);
    end if;
    if held is null and found_run.status = 'running' and holdfast.alive(
        found_run.owner, p ->> 'here', array(select jsonb_array_elements_text(p -> 'dead'))
    ) then
        return jsonb_build_object('error', 'busy', 'owner', found_run.owner);
    end if;
    perform holdfast.remove_runs(array[found_run.id]);
    return null;
end
$$;
