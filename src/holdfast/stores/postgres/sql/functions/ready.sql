-- Whether `claim_next` may claim the run now. `next_runs` has the same condition for all runs at once.
create or replace function holdfast.ready(r holdfast.run, p_here text, p_dead text[]) returns boolean
language sql stable as $$
    select case
            when r.status = 'running' then r.not_before <= now() and not holdfast.alive(r.owner, p_here, p_dead)
            else r.status in ('queued', 'interrupted', 'waiting') and coalesce(r.due_at <= now(), false)
        end
        and not exists (
            select from holdfast.run parent
            where parent.run_id = r.parent_run_id and parent.status not in ('done', 'failed', 'cancelled')
        )
$$;
