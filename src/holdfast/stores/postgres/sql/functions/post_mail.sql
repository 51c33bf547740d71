-- Add mail to a run, and wake the run if it waits for this topic. Mail with an id that the run knows changes nothing.
create or replace function holdfast.post_mail(p jsonb) returns jsonb
language plpgsql as $$
declare
    found_run record;
    known record;
begin
    -- Locked, so that the run does not end or begin to wait meanwhile.
    select r.id, r.status, r.wake_on, r.has_mail into found_run
    from holdfast.run r where r.run_id = p ->> 'run_id' for update;
    if not found then
        return jsonb_build_object('error', 'missing');
    end if;
    select m.topic, m.posted_at, m.consumed, m.body into known
    from holdfast.mail m where m.run = found_run.id and m.mail_id = p ->> 'mail_id';
    if found then
        return jsonb_build_object(
            'new', false, 'topic', known.topic, 'posted_at', known.posted_at, 'consumed', known.consumed,
            'body', encode(known.body, 'hex')
        );
    end if;
    if found_run.status in ('done', 'failed', 'cancelled') then
        return jsonb_build_object('error', 'ended', 'status', found_run.status);
    end if;
    insert into holdfast.mail (run, mail_id, topic, body)
    values (found_run.id, p ->> 'mail_id', p ->> 'topic', decode(p ->> 'body', 'base64'));
    if found_run.status = 'waiting' and p ->> 'topic' = any (found_run.wake_on) then
        update holdfast.run r set
            status = 'interrupted', reason = '', wake_at = null, wake_on = '{}', has_mail = true,
            not_before = now(), due_at = now(), updated_at = now()
        where r.id = found_run.id;
    elsif not found_run.has_mail then
        update holdfast.run r set has_mail = true where r.id = found_run.id;
    end if;
    return jsonb_build_object('new', true, 'posted_at', now());
end
$$;
