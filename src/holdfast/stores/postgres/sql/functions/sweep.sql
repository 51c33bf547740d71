-- Delete up to `slice` segments and mail that belong to no run. Returns their number; zero if none is left.
create or replace function holdfast.sweep(p_slice bigint) returns bigint
language plpgsql as $$
declare
    heap record;
    side bigint;
    swept bigint;
    total bigint := 0;
begin
    -- If a crash of the server undoes it, it is repeated.
    perform set_config('synchronous_commit', 'off', true);
    while total < p_slice loop
        select g.id, g.run, g.below into heap
        from holdfast.garbage g order by g.id limit 1 for update skip locked;
        exit when not found;
        -- The second parts of split segments, then the segments.
        foreach side in array array[-heap.run, heap.run] loop
            delete from holdfast.segment p using (
                select s.run, s.seq from holdfast.segment s
                where s.run = side and s.seq < heap.below order by s.seq limit p_slice - total
            ) slice
            where p.run = slice.run and p.seq = slice.seq;
            get diagnostics swept = row_count;
            total := total + swept;
        end loop;
        -- The mail, unless the run is there and has rewritten its journal.
        delete from holdfast.mail m using (
            select u.id from holdfast.mail u
            where u.run = heap.run and not exists (select from holdfast.run r where r.id = heap.run)
            limit p_slice - total
        ) slice
        where m.id = slice.id;
        get diagnostics swept = row_count;
        total := total + swept;
        if total < p_slice then
            delete from holdfast.garbage g where g.id = heap.id;
            total := total + 1;
        end if;
    end loop;
    return total;
end
$$;
