-- Consume mail of a run that the caller has locked. Returns the refusal, if a piece of mail is not unread, or if the run has
-- other unread mail of these topics. Then nothing is changed.
create or replace function holdfast.consume_mail(p_run bigint, p_mail_ids text[], p_topics text[]) returns jsonb
language plpgsql as $$
declare
    unknown text[];
begin
    unknown := array(
        select wanted from unnest(p_mail_ids) as wanted
        where not exists (
            select from holdfast.mail m where m.run = p_run and m.mail_id = wanted and not m.consumed
        )
    );
    if unknown <> '{}' then
        return jsonb_build_object('error', 'mail', 'mail_ids', unknown);
    end if;
    if exists (
        select from holdfast.mail m
        where m.run = p_run and not m.consumed and m.topic = any (p_topics) and m.mail_id <> all (p_mail_ids)
    ) then
        return jsonb_build_object('error', 'unread');
    end if;
    if p_mail_ids <> '{}' then
        update holdfast.mail m set consumed = true, body = ''
        where m.run = p_run and m.mail_id = any (p_mail_ids);
        update holdfast.run r set has_mail = false
        where r.id = p_run and not exists (select from holdfast.mail m where m.run = p_run and not m.consumed);
    end if;
    return null;
end
$$;
