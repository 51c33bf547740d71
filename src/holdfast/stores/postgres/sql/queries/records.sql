-- $1: after this id, $2: so many, $3: interrupted only, $4: this host, $5: its dead workers, $6 to $9: filters or null
select holdfast.record(r, w), r.id
from holdfast.run r left join holdfast.worker w on w.worker_id = r.owner and r.status = 'running'
where r.id > $1
    and (
        not $3
        or r.status in ('queued', 'running', 'interrupted')
        and not exists (
            select from holdfast.worker o
            where o.worker_id = r.owner and r.status = 'running' and holdfast.lives(o, $4, $5)
        )
    )
    and ($6 is null or r.status = any ($6))
    and ($7 is null or r.agent_name = $7)
    and ($8 is null or r.caller_id = $8)
    and ($9 is null or r.parent_run_id = $9)
order by r.id
limit $2
