-- A run and its journal, from one snapshot: the record as the body of the first row, with the unread mail as its layout, then
-- the segments. A function, because a session plans it once.
create or replace function holdfast.load_run(p_run_id text, p_after bigint)
returns table (seq bigint, layout text, checksum bigint, body bytea)
-- Stable: all of its statements use the snapshot of the call.
language plpgsql stable
-- The cost of a long journal would have the server compile the plan, which takes longer than to read the journal.
set jit = off
as $$
declare
    found_run holdfast.run;
    found_worker holdfast.worker;
begin
    select r.* into found_run from holdfast.run r where r.run_id = p_run_id;
    if not found then
        return;
    end if;
    if found_run.status = 'running' then
        select w.* into found_worker from holdfast.worker w where w.worker_id = found_run.owner;
    end if;
    -- RECORD_ONLY, after END, asks for no mail.
    if found_run.has_mail and p_after <= 4611686018427387904 then
        layout := (
            select json_agg(
                json_build_object(
                    'mail_id', m.mail_id, 'topic', m.topic, 'posted_at', m.posted_at, 'body', encode(m.body, 'hex')
                )
                order by m.id
            )
            from holdfast.mail m where m.run = found_run.id and not m.consumed
        );
    end if;
    body := convert_to(holdfast.record(found_run, found_worker)::text, 'UTF8');
    return next;
    return query
    select p.seq, ltrim(p.layout, '+'), p.checksum,
        case
            when starts_with(p.layout, '+')
                then p.body || (select rest.body from holdfast.segment rest where rest.run = -p.run and rest.seq = p.seq)
            else p.body
        end
    from holdfast.segment p
    where p.run = found_run.id and p.seq >= found_run.first_seq
        -- From the segment that holds the next entry.
        and p.seq >= coalesce(
            (select max(b.seq) from holdfast.segment b where b.run = found_run.id and b.seq <= p_after + 1), 0
        )
    order by p.seq;
end
$$;
