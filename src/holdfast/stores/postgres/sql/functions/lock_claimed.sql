-- Lock a run under its claim, to write entries and consume mail. `key` is null if the write is refused, and `answer` says why.
-- Entries that an earlier write of this claim left, without its writer learning of it, are deleted: `rewind`.
create or replace function holdfast.lock_claimed(p jsonb, p_topics text[], out key bigint, out answer jsonb)
language plpgsql as $$
declare
    found_run record;
    first bigint := (p ->> 'first')::bigint;
    rewind bigint := (p ->> 'rewind')::bigint;
    consumed text[] := array(select jsonb_array_elements_text(p -> 'consumed'));
begin
    select r.id, r.next_seq, r.has_mail, r.cancel_requested into found_run
    from holdfast.run r
    where r.run_id = p ->> 'run_id' and r.token = (p ->> 'token')::bigint
        and r.status || '' = 'running' -- as in `write_batch`
    for update;
    if not found or (first <> found_run.next_seq and found_run.next_seq is distinct from rewind) then
        answer := holdfast.refusal(p ->> 'run_id', (p ->> 'token')::bigint);
        return;
    end if;
    if found_run.cancel_requested and p ->> 'status' = 'done' then
        answer := jsonb_build_object('error', 'unread');
        return;
    end if;
    if consumed <> '{}' or (found_run.has_mail and p_topics <> '{}') then
        answer := holdfast.consume_mail(found_run.id, consumed, p_topics);
        if answer is not null then
            return;
        end if;
    end if;
    if rewind is not null then
        delete from holdfast.segment s where s.run in (found_run.id, -found_run.id) and s.seq >= first;
    end if;
    key := found_run.id;
end
$$;
