-- The record of a run; with its owner, if the run is running and the owner is registered.
create or replace function holdfast.record(r holdfast.run, w holdfast.worker) returns json
language sql stable as $$
    select json_build_object(
        'run_id', r.run_id,
        'agent_name', r.agent_name,
        'caller_id', r.caller_id,
        'parent_run_id', r.parent_run_id,
        'status', r.status,
        'created_at', r.created_at,
        'updated_at', r.updated_at,
        'owner', r.owner,
        'host', w.host,
        'pid', w.pid,
        'started', w.started,
        'heard_from', holdfast.heard_from(w),
        'token', r.token,
        'strikes', r.strikes,
        'not_before', r.not_before,
        'wake_at', r.wake_at,
        'wake_on', r.wake_on,
        'labels', r.labels,
        'priority', r.priority,
        'concurrency_key', r.concurrency_key,
        'tenant', r.tenant,
        'background', r.background,
        'reason', r.reason,
        'cancel_requested', r.cancel_requested,
        'expires_at', r.expires_at,
        'first_seq', r.first_seq,
        'next_seq', r.next_seq,
        'size', r.size,
        'info', encode(r.info, 'hex'),
        'progress', encode(r.progress, 'hex')
    )
$$;
