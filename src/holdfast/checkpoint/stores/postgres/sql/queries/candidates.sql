-- The runs that may be taken now: the oldest of each caller, then the second oldest of each, and so on.
-- $1: agents, $2: not these, $3: so many, $4: this host, $5: its dead workers
select id
from (
    select r.id, row_number() over (partition by r.caller_id order by r.id) as turn
    from holdfast.run r
    where r.status in ('queued', 'running', 'interrupted')
        and r.agent_name = any ($1)
        and r.id <> all ($2)
        and holdfast.ready(r, $4, $5)
) ready
order by turn, id
limit $3
