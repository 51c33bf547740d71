-- Whether a worker was heard from of late. While the server was down nobody could say a word: it listens again first.
create or replace function holdfast.heard_from(w holdfast.worker) returns boolean
language sql stable as $$
    select greatest(w.alive_until, pg_postmaster_start_time() + w.dead_after) > now()
$$;

-- Whether a worker lives. Who asks knows which workers of his own host are dead; the others of it live.
create or replace function holdfast.lives(w holdfast.worker, p_here text, p_dead text[]) returns boolean
language sql stable as $$
    select case when w.host = p_here then w.worker_id <> all (p_dead) else holdfast.heard_from(w) end
$$;

-- The same by its id. Who was never enlisted, or was discharged, does not live.
create or replace function holdfast.alive(p_worker_id text, p_here text, p_dead text[]) returns boolean
language sql stable as $$
    select exists (
        select from holdfast.worker w where w.worker_id = p_worker_id and holdfast.lives(w, p_here, p_dead)
    )
$$;
