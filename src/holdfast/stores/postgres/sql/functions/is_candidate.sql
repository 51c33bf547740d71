-- Whether a run that is due or has a dead owner may be claimed: by its agent, its key, and its parent.
create or replace function holdfast.is_candidate(
    r holdfast.run, p_agents text[], p_full_keys text[], p_but_not bigint[]
) returns boolean
language sql stable as $$
    select r.agent_name = any (p_agents)
        and r.id <> all (p_but_not)
        and (r.concurrency_key is null or r.concurrency_key <> all (p_full_keys))
        and not holdfast.belongs_to_parent(r)
$$;

-- Whether the run has a parent that has not ended. Such a run is resumed by its parent alone, unless it runs in the background.
create or replace function holdfast.belongs_to_parent(r holdfast.run) returns boolean
language sql stable as $$
    select r.parent_run_id is not null and not r.background and holdfast.is_unfinished(r.parent_run_id)
$$;

create or replace function holdfast.is_unfinished(p_run_id text) returns boolean
language plpgsql stable as $$
begin
    return exists (
        select from holdfast.run r where r.run_id = p_run_id and r.status not in ('done', 'failed', 'cancelled')
    );
end
$$;
