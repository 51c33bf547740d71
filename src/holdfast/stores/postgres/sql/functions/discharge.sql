-- Deregister these workers.
create or replace function holdfast.discharge(p_worker_ids text[]) returns void
language sql as $$
    delete from holdfast.worker where worker_id = any (p_worker_ids);
    select pg_notify('holdfast', '')
$$;
