-- A run and its journal, all of one moment: the record as the body of the first row, then the entries. A function, because
-- a session plans it once.
create or replace function holdfast.load_run(p_run_id text, p_after bigint)
returns table (seq bigint, kind text, checksum bigint, body bytea)
-- Stable: each of its statements sees what the call saw.
language plpgsql stable as $$
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
    body := convert_to(holdfast.record(found_run, found_worker)::text, 'UTF8');
    return next;
    return query
    select e.seq, e.kind, e.checksum, e.body
    from holdfast.entry e
    where e.run = found_run.id and e.seq > p_after and e.seq >= found_run.first_seq
    order by e.seq;
end
$$;
