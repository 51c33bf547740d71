-- Delete the rows of processes that ended long ago. A worker that was suspended for so long registers again.
with workers as (delete from holdfast.worker where alive_until < now() - interval '7 days')
delete from holdfast.writer where used_at < now() - interval '7 days'
