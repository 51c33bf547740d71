-- $1: after this id, $2: limit, $3: interrupted only, $4: this host, $5: its dead workers, $6 to $9: filters or null
select holdfast.record(r, w)::text, r.id
from holdfast.run r left join holdfast.worker w on w.worker_id = r.owner and r.status = 'running'
where r.id > $1::bigint
    and (
        not $3::boolean
        or r.status in ('queued', 'running', 'interrupted')
        and not exists (
            select from holdfast.worker o
            where o.worker_id = r.owner and r.status = 'running' and holdfast.lives(o, $4::text, $5::text[])
        )
    )
    and ($6::text[] is null or r.status = any ($6::text[]))
    and ($7::text is null or r.agent_name = $7::text)
    and ($8::text is null or r.caller_id = $8::text)
    and ($9::text is null or r.parent_run_id = $9::text)
order by r.id
limit $2::bigint
