-- An append that depends on mail. Without mail, `write_batch` appends for many runs at once.
create or replace function holdfast.append_run(p jsonb, out key bigint, out answer jsonb)
language plpgsql as $$
declare
    replaces boolean := (p ->> 'rewrite')::boolean;
    finished boolean := (p ->> 'finished')::boolean;
    first bigint := (p ->> 'first')::bigint;
    kept_from bigint;
begin
    select l.key, l.answer into key, answer
    from holdfast.lock_claimed(p, array(select jsonb_array_elements_text(p -> 'unless_mail'))) l;
    if key is null then
        return;
    end if;
    update holdfast.run r set
        first_seq = case when replaces then coalesce(first, r.next_seq) else r.first_seq end,
        next_seq = coalesce(first, r.next_seq) + (p ->> 'count')::bigint,
        size = case when replaces then 0 else r.size end + (p ->> 'size')::bigint,
        progress = decode(p ->> 'progress', 'base64'),
        strikes = case when finished then 0 else r.strikes end,
        not_before = case when finished then least(r.not_before, now()) else r.not_before end,
        updated_at = now()
    where r.id = append_run.key
    returning r.first_seq into kept_from;
    if replaces then
        insert into holdfast.garbage (run, below) values (key, kept_from);
    end if;
end
$$;
