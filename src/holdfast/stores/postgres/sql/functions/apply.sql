-- One operation of a batch, other than an append without mail.
--
-- `key`: the run to whose journal the operation's entries belong; null if it was refused. `answer`: its response, if it has
-- more than success. `sign`: whether to send a change notification.
create or replace function holdfast.apply(p jsonb, out key bigint, out answer jsonb, out sign boolean)
language plpgsql as $$
begin
    sign := true;
    case p ->> 'do'
        when 'create' then
            select c.key, c.answer into key, answer from holdfast.create_run(p) c;
            sign := p ->> 'worker_id' is null or answer ? 'queued';
        when 'append' then
            select a.key, a.answer into key, answer from holdfast.append_run(p) a;
            sign := false;
        when 'settle' then
            select s.key, s.answer into key, answer from holdfast.settle_run(p) s;
        when 'remove' then
            answer := holdfast.remove_run(p);
        when 'claim' then
            answer := holdfast.claim_run(p);
            sign := false;
        when 'take' then
            answer := holdfast.take_runs(p);
            sign := false;
        when 'post' then
            answer := holdfast.post_mail(p);
        when 'cancel' then
            answer := holdfast.cancel_run(p);
        when 'purge' then
            answer := holdfast.purge_runs(p);
    end case;
end
$$;
