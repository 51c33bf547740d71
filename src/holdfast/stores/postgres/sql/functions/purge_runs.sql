-- Remove terminal runs that have expired, with their descendants.
create or replace function holdfast.purge_runs(p jsonb) returns jsonb
language plpgsql as $$
declare
    expired bigint[];
begin
    select coalesce(array_agg(e.id), '{}') into expired
    from (
        select r.id from holdfast.run r
        where r.expires_at <= now() and r.status in ('done', 'failed', 'cancelled')
            -- A parent that may resume needs the result of its child.
            and not exists (
                select from holdfast.run parent where parent.run_id = r.parent_run_id and parent.status <> 'done'
            )
        order by r.expires_at
        limit (p ->> 'limit')::bigint
        for update skip locked
    ) e;
    perform holdfast.remove_runs(expired);
    return jsonb_build_object('purged', cardinality(expired));
end
$$;
