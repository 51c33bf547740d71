-- Whether the lease of a worker is valid. After a start of the server every worker gets one more lease: none could renew
-- its lease while the server was down.
create or replace function holdfast.heard_from(w holdfast.worker) returns boolean
language sql stable as $$
    select greatest(w.alive_until, pg_postmaster_start_time() + w.dead_after) > now()
$$;

-- Whether a worker is alive. The caller knows which workers of its own host are dead; all others of that host are alive.
create or replace function holdfast.lives(w holdfast.worker, p_here text, p_dead text[]) returns boolean
language sql stable as $$
    select case when w.host = p_here then w.worker_id <> all (p_dead) else holdfast.heard_from(w) end
$$;

-- The same by its id. A worker that is not registered is not alive.
create or replace function holdfast.alive(p_worker_id text, p_here text, p_dead text[]) returns boolean
language sql stable as $$
    select exists (
        select from holdfast.worker w where w.worker_id = p_worker_id and holdfast.lives(w, p_here, p_dead)
    )
$$;
