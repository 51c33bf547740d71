-- The runs that may be taken now: the oldest of each caller, then the second oldest of each, and so on.
select id
from (
    select r.id, row_number() over (partition by r.caller_id order by r.id) as turn
    from holdfast.run r
    where r.status in ('queued', 'running', 'interrupted')
        and r.agent_name = any (%(agents)s::text[])
        and r.id <> all (%(tried)s::bigint[])
        and holdfast.ready(r, %(here)s, %(dead)s)
) ready
order by turn, id
limit %(limit)s
