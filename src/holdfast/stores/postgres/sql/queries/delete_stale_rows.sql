-- Delete the rows of processes that ended long ago. A worker that was suspended for so long registers again. Delete the
-- drafts of runs that are gone.
with workers as (delete from holdfast.worker where alive_until < now() - interval '7 days'),
    requests as (delete from holdfast.draft_request where until < now()),
    drafts as (
        delete from holdfast.draft d where not exists (select 1 from holdfast.run r where r.id = d.run)
    )
delete from holdfast.writer where used_at < now() - interval '7 days'
