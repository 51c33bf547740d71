-- Claim one run by its id.
create or replace function holdfast.claim_run(p jsonb) returns jsonb
language plpgsql as $$
declare
    found_run record;
    driven boolean;
begin
    select r.id, r.status, r.owner, r.reason, r.wake_at, r.wake_on, r.agent_name, r.concurrency_key, r.parent_run_id,
        r.background
    into found_run
    from holdfast.run r where r.run_id = p ->> 'run_id' for update;
    if not found then
        return jsonb_build_object('error', 'missing');
    end if;
    driven := found_run.status = 'running' and holdfast.alive(
        found_run.owner, p ->> 'here', array(select jsonb_array_elements_text(p -> 'dead'))
    );
    if driven and not (p ->> 'steal')::boolean then
        return jsonb_build_object('error', 'busy', 'owner', found_run.owner);
    end if;
    -- A running run without a live owner counts as interrupted, and so does one that has waited long enough.
    if not p -> 'statuses' ? found_run.status and not (
        p -> 'statuses' ? 'interrupted'
        and (found_run.status = 'running' and not driven or coalesce(found_run.wake_at <= now(), false))
    ) then
        return jsonb_build_object('error', 'status', 'status', found_run.status, 'reason', found_run.reason);
    end if;
    if (p ->> 'within_limits')::boolean and not holdfast.has_slot(
        found_run.agent_name, found_run.concurrency_key, found_run.parent_run_id, found_run.background,
        p ->> 'here', array(select jsonb_array_elements_text(p -> 'dead'))
    ) then
        return jsonb_build_object('error', 'limit', 'status', found_run.status);
    end if;
    return holdfast.take_run(found_run.id, p ->> 'worker_id', p -> 'backoff')
        || jsonb_build_object(
            'was', found_run.status, 'reason', found_run.reason,
            'wake_at', found_run.wake_at, 'wake_on', found_run.wake_on
        );
end
$$;
