-- Record a request for the owner of the run to cancel it. A terminal run has no owner.
create or replace function holdfast.cancel_run(p jsonb) returns jsonb
language plpgsql as $$
begin
    update holdfast.run r set cancel_requested = r.status not in ('done', 'failed', 'cancelled')
    where r.run_id = p ->> 'run_id';
    return case when not found then jsonb_build_object('error', 'missing') end;
end
$$;
