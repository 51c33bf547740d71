-- End a claim and set the status of the run.
create or replace function holdfast.settle_run(p jsonb, out key bigint, out answer jsonb)
language plpgsql as $$
declare
    new_status text := p ->> 'status';
    topics text[] := array(select jsonb_array_elements_text(p -> 'wake_on'));
    free_at timestamptz := now() + make_interval(secs => (p ->> 'delay')::float8);
    wake timestamptz := (p ->> 'wake_at')::timestamptz;
begin
    select l.key, l.answer into key, answer from holdfast.lock_claimed(p, topics) l;
    if key is null and answer ->> 'error' = 'unread' and (p ->> 'restores')::boolean then
        -- The run was claimed while it waited, and the claim is undone: the mail that came meanwhile resumes it.
        new_status := 'interrupted';
        select l.key, l.answer into key, answer from holdfast.lock_claimed(p, '{}') l;
    end if;
    if key is null then
        return;
    end if;
    if (p ->> 'yields_to_cancel')::boolean and (select r.cancel_requested from holdfast.run r where r.id = settle_run.key) then
        new_status := 'interrupted';
        free_at := now();
    end if;
    update holdfast.run r set
        status = new_status,
        reason = p ->> 'reason',
        strikes = (p ->> 'strikes')::integer,
        not_before = free_at,
        due_at = case
            when new_status = 'interrupted' then free_at
            when new_status = 'waiting' and wake is not null then greatest(wake, free_at)
        end,
        wake_at = case when new_status = 'waiting' then wake end,
        wake_on = case when new_status = 'waiting' then topics else '{}' end,
        expires_at = now() + make_interval(secs => (p ->> 'keep')::float8),
        progress = coalesce(decode(p ->> 'progress', 'base64'), r.progress),
        next_seq = coalesce((p ->> 'first')::bigint, r.next_seq) + (p ->> 'count')::bigint,
        size = r.size + (p ->> 'size')::bigint,
        cancel_requested = r.cancel_requested and new_status not in ('done', 'failed', 'cancelled'),
        updated_at = now()
    where r.id = settle_run.key;
    if p ? 'notify' then
        -- If that run is gone or has ended, there is no run to notify.
        perform holdfast.post_mail(p -> 'notify');
    end if;
end
$$;
