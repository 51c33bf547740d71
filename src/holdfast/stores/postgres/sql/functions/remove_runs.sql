-- Delete runs and all their descendants. The records go at once; `sweep` deletes the journals later, in slices.
create or replace function holdfast.remove_runs(p_ids bigint[]) returns void
language sql as $$
    with recursive doomed (id, run_id) as (
        select r.id, r.run_id from holdfast.run r where r.id = any (p_ids)
        union
        select child.id, child.run_id from doomed join holdfast.run child on child.parent_run_id = doomed.run_id
    ),
    removed as (
        delete from holdfast.run r where r.id in (select id from doomed) returning r.id, r.next_seq
    )
    insert into holdfast.garbage (run, below) select id, next_seq from removed
$$;
