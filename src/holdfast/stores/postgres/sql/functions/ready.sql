-- Whether `claim_next` may claim the run now. `next_runs` has the same condition for all runs at once.
create or replace function holdfast.ready(r holdfast.run, p_here text, p_dead text[]) returns boolean
-- Not in SQL: that would be planned once for each statement, which takes longer than 30 calls.
language plpgsql stable as $$
begin
    return case
            when r.status = 'running' then r.not_before <= now() and not holdfast.alive(r.owner, p_here, p_dead)
            else r.status in ('queued', 'interrupted', 'waiting') and coalesce(r.due_at <= now(), false)
        end
        and not holdfast.belongs_to_parent(r);
end
$$;
