-- Delete runs and all their descendants. The records and drafts go at once; `sweep` deletes journals and mail later, in slices.
create or replace function holdfast.remove_runs(p_ids bigint[]) returns void
language sql as $$
    with recursive doomed (id, run_id) as (
        select r.id, r.run_id from holdfast.run r where r.id = any (p_ids)
        union
        select child.id, child.run_id from doomed join holdfast.run child on child.parent_run_id = doomed.run_id
    ),
    removed as (
        delete from holdfast.run r where r.id in (select id from doomed)
        returning r.id, r.next_seq, r.created_at, r.labels
    ),
    unlabelled as (
        delete from holdfast.run_label k using removed r, jsonb_each_text(r.labels) l
        where k.label = holdfast.label_key(l.key, l.value) and k.created_at = r.created_at and k.run = r.id
    ),
    undrafted as (
        delete from holdfast.draft d using removed r where d.run = r.id
    )
    insert into holdfast.garbage (run, below) select id, next_seq from removed
$$;
