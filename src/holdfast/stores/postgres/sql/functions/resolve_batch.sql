-- The answers of a batch whose outcome its writer does not know, if it was committed. Else `null`, and it cannot be
-- committed any more. The writer skips one batch number.
create or replace function holdfast.resolve_batch(p_writer uuid, p_batch bigint) returns jsonb
language plpgsql as $$
declare
    newest record;
begin
    insert into holdfast.writer (writer_id, batch) values (p_writer, p_batch + 1) on conflict (writer_id) do nothing;
    -- Waits for a transaction that is still writing this batch.
    select w.batch, w.answers into newest from holdfast.writer w where w.writer_id = p_writer for update;
    if newest.batch = p_batch then
        return newest.answers;
    end if;
    update holdfast.writer w set batch = p_batch + 1 where w.writer_id = p_writer and w.batch < p_batch;
    return null;
end
$$;
