select
    r.run_id, r.agent_name, r.caller_id, r.parent_run_id, r.status, r.created_at, r.updated_at, r.owner,
    w.host, w.pid, w.started, holdfast.heard_from(w),
    r.token, r.strikes, r.not_before, r.reason, r.cancel_requested, r.expires_at, r.next_seq, r.size, r.meta, r.progress,
    r.id
from holdfast.run r left join holdfast.worker w on w.worker_id = r.owner and r.status = 'running'
where r.id > %(after)s
    and (
        not %(interrupted)s
        or r.status in ('queued', 'running', 'interrupted')
        and not (r.status = 'running' and holdfast.alive(r.owner, %(here)s, %(dead)s))
    )
    and (%(statuses)s::text[] is null or r.status = any (%(statuses)s::text[]))
    and (%(agent_name)s::text is null or r.agent_name = %(agent_name)s)
    and (%(caller_id)s::text is null or r.caller_id = %(caller_id)s)
    and (%(parent_run_id)s::text is null or r.parent_run_id = %(parent_run_id)s)
order by r.id
limit %(limit)s
