-- All waiting writes, in one round trip and one commit. Each item succeeds or is refused on its own.
--
-- The appends are arrays with one element for each; they are the items from 1 on. The other operations are fewer, and
-- follow as an array of objects. The segments follow at the end, each with the number of its item; the second part of a
-- split segment follows the first and has no layout.
--
-- Returns the answers by item, for items whose response is more than success. A batch that was committed before is not
-- applied again: the stored answers are returned. `null`: a later batch was sent meanwhile.
create or replace function holdfast.write_batch(
    p_writer uuid,
    p_batch bigint,
    p_durable boolean,
    p_run_ids text[],
    p_tokens bigint[],
    p_firsts bigint[],
    p_counts bigint[],
    p_sizes bigint[],
    p_progresses bytea[],
    p_finished boolean[],
    p_replaces boolean[],
    p_rewinds bigint[],
    p_others jsonb,
    p_items bigint[],
    p_seqs bigint[],
    p_layouts text[],
    p_checksums bigint[],
    p_bodies bytea[]
) returns jsonb
language plpgsql
-- A session plans it once, and keeps plans that it made while the tables were small, when a sequential scan seems as cheap
-- as an index lookup. So the costs make every row that is read expensive.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set cpu_tuple_cost = 1
set cpu_index_tuple_cost = 1
-- Such costs would have the server compile the plan, for 300 ms.
set jit = off
-- For the unnested batch; with less it would spill to disk.
set work_mem = '32MB'
as $$
declare
    written bigint[];
    refused bigint[];
    keys bigint[];
    said jsonb := '{}';
    speakers bigint[] := '{}';
    answers jsonb[] := '{}';
    operation jsonb;
    done record;
    sign boolean := false;
begin
    -- A row that is not changed writes no WAL. Nearly always it exists, and an insert would lock it first.
    update holdfast.writer w set
        batch = p_batch,
        answers = '{}',
        used_at = case when w.used_at < now() - interval '1 hour' then now() else w.used_at end
    where w.writer_id = p_writer and w.batch < p_batch;
    if not found then
        insert into holdfast.writer as w (writer_id, batch) values (p_writer, p_batch)
        on conflict (writer_id) do update set batch = excluded.batch, answers = '{}', used_at = now()
            where w.batch < excluded.batch;
        if not found then
            return (select w.answers from holdfast.writer w where w.writer_id = p_writer and w.batch = p_batch);
        end if;
    end if;
    if not p_durable then
        perform set_config('synchronous_commit', 'off', true);
    end if;

    with appended as (
        update holdfast.run r set
            first_seq = case when a.replaces then coalesce(a.first, r.next_seq) else r.first_seq end,
            next_seq = coalesce(a.first, r.next_seq) + a.count,
            size = case when a.replaces then 0 else r.size end + a.size,
            progress = a.progress,
            strikes = case when a.finished then 0 else r.strikes end,
            not_before = case when a.finished then least(r.not_before, now()) else r.not_before end,
            updated_at = now()
        from unnest(
            p_run_ids, p_tokens, p_firsts, p_counts, p_sizes, p_progresses, p_finished, p_replaces, p_rewinds
        ) with ordinality as a (run_id, token, first, count, size, progress, finished, replaces, rewind, item)
        where r.run_id = a.run_id and r.token = a.token
            -- Not in the form of the index by status: the planner would take that for short, and scan it.
            and r.status || '' = 'running'
            and (a.first is null or r.next_seq in (a.first, a.rewind))
        returning a.item, r.id
    )
    select coalesce(array_agg(item order by item), '{}'), coalesce(array_agg(id order by item), '{}')
    into written, keys
    from appended;

    if cardinality(keys) < cardinality(p_run_ids) then
        -- Some were refused: zeros in their places.
        refused := array(select generate_series(1, cardinality(p_run_ids)) except select unnest(written));
        select array_agg(k.key order by k.item) into keys
        from (select * from unnest(written, keys) union all select unnest(refused), 0) as k (item, key);
        select jsonb_object_agg(item, holdfast.refusal(p_run_ids[item], p_tokens[item])) into said
        from unnest(refused) as item;
    end if;

    if p_rewinds is not null then
        -- Entries that were committed without their writer learning of it; it now replaces them.
        delete from holdfast.segment p
        using unnest(keys, p_firsts, p_rewinds) as a (key, first, rewind), unnest(array[a.key, -a.key]) as side (run)
        where a.rewind is not null and p.run = side.run and p.seq >= a.first;
    end if;
    if true = any (p_replaces) then
        insert into holdfast.garbage (run, below)
        select a.key, r.first_seq
        from unnest(keys, p_replaces) as a (key, replaces) join holdfast.run r on r.id = a.key
        where a.replaces;
    end if;

    if p_others is not null then
        for operation in select value from jsonb_array_elements(p_others) loop
            select * into done from holdfast.apply(operation);
            keys := keys || coalesce(done.key, 0);
            sign := sign or done.sign;
            if done.answer is not null then
                speakers := speakers || cardinality(keys)::bigint;
                answers := answers || done.answer;
            end if;
        end loop;
        -- Built once: an object that grows answer by answer is copied each time.
        said := said || coalesce(
            (select jsonb_object_agg(a.item, a.answer) from unnest(speakers, answers) as a (item, answer)), '{}'
        );
    end if;

    insert into holdfast.segment (run, seq, layout, checksum, body)
    select case when p.layout = '' then -keys[p.item] else keys[p.item] end, p.seq, p.layout, p.checksum, p.body
    from unnest(p_items, p_seqs, p_layouts, p_checksums, p_bodies) as p (item, seq, layout, checksum, body)
    where keys[p.item] > 0;

    if said <> '{}' then
        update holdfast.writer w set answers = said where w.writer_id = p_writer;
    end if;
    -- At commit a notification takes a lock of the whole server: so one for the batch, and none for appends.
    if sign then
        perform pg_notify('holdfast', '');
    end if;
    return said;
end
$$;
