-- Rows of processes that are long gone. A worker that slept through it comes back with its next beat.
with workers as (delete from holdfast.worker where alive_until < now() - interval '7 days')
delete from holdfast.writer where used_at < now() - interval '7 days'
