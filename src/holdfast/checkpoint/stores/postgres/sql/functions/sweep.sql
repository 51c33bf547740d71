-- Delete up to `slice` pieces that no run refers to any more. Gives how many; zero says that nothing is left to do here.
create or replace function holdfast.sweep(p_slice bigint) returns bigint
language plpgsql as $$
declare
    heap record;
    swept bigint;
    total bigint := 0;
begin
    -- Should a crash of the server undo it, it is done again.
    perform set_config('synchronous_commit', 'off', true);
    while total < p_slice loop
        select g.id, g.run, g.below into heap
        from holdfast.garbage g order by g.id limit 1 for update skip locked;
        exit when not found;
        delete from holdfast.piece p using (
            select s.run, s.seq from holdfast.piece s
            where s.run = heap.run and s.seq < heap.below order by s.seq limit p_slice - total
        ) slice
        where p.run = slice.run and p.seq = slice.seq;
        get diagnostics swept = row_count;
        if swept < p_slice - total then
            delete from holdfast.garbage g where g.id = heap.id;
            swept := swept + 1;
        end if;
        total := total + swept;
    end loop;
    return total;
end
$$;
