-- The record and its entries in one statement, so that both are of the same moment: a row for each, in any order.
select
    r.run_id, r.agent_name, r.caller_id, r.parent_run_id, r.status, r.created_at, r.updated_at, r.owner,
    w.host, w.pid, w.started, holdfast.heard_from(w),
    r.token, r.strikes, r.not_before, r.reason, r.cancel_requested, r.expires_at, r.next_seq, r.size, r.meta, r.progress,
    r.first_seq, null as seq, null as kind, null as checksum, null as body
from holdfast.run r left join holdfast.worker w on w.worker_id = r.owner and r.status = 'running'
where r.run_id = %(run_id)s
union all
select
    null, null, null, null, null, null, null, null,
    null, null, null, null,
    null, null, null, null, null, null, null, null, null, null,
    null, e.seq, e.kind, e.checksum, e.body
from holdfast.run r join holdfast.entry e on e.run = r.id
where r.run_id = %(run_id)s and e.seq > %(after)s and e.seq >= r.first_seq
