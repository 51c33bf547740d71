-- The row comes back if somebody tidied it away while the worker was not heard from.
insert into holdfast.worker (worker_id, host, pid, started, alive_until, dead_after)
select worker_id, host, pid, started, now() + %(dead_after)s, %(dead_after)s
from unnest(%(worker_ids)s::text[], %(hosts)s::text[], %(pids)s::bigint[], %(started)s::text[])
    as w (worker_id, host, pid, started)
on conflict (worker_id) do update set alive_until = excluded.alive_until
