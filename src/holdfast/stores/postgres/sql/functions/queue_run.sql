-- Queue a run in the transaction of the caller: its row, and its first entry as one segment.
--
-- Returns null. If there is a run with this id, changes nothing and returns the body of its first entry.
create or replace function holdfast.queue_run(p jsonb, p_layout text, p_checksum bigint, p_body bytea) returns bytea
language plpgsql
set jit = off
as $$
declare
    made record;
    locks integer := coalesce(nullif(current_setting('holdfast_store.locks', true), ''), '0');
begin
    -- Not for all runs of a large transaction: the locks of the whole server fit into one table.
    if locks < 500 then
        perform pg_advisory_xact_lock(holdfast.id_lock(p ->> 'run_id'));
        perform set_config('holdfast_store.locks', (locks + 1)::text, true);
    end if;
    select c.key, c.answer into made from holdfast.create_run(p) c;
    if made.key is null then
        return (
            select substring(first.body || coalesce(rest.body, ''), 1, substring(first.layout from '^\+?b(\d+)')::integer)
            from holdfast.run r
            join holdfast.segment first on first.run = r.id and first.seq = r.first_seq
            left join holdfast.segment rest on rest.run = -r.id and rest.seq = r.first_seq
            where r.run_id = p ->> 'run_id'
        );
    end if;
    insert into holdfast.segment (run, seq, layout, checksum, body) values (made.key, 0, p_layout, p_checksum, p_body);
    -- Sent when the transaction commits.
    perform pg_notify('holdfast', '');
    return null;
end
$$;
