-- heartbeat: keeps a worker, and with it every job it runs, alive; brings back the jobs it is asked to stop.
--
-- alive = false: the worker was declared lost, its jobs belong to others. It must abandon them and register again.
--
-- Moves nothing. Locks the worker's row. Raises nothing.
-- Called by workers, several times within their lease.
create or replace function pgqueue.heartbeat(p_worker_id bigint, out alive boolean, out cancel_ids bigint[])
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  update pgqueue.worker w set heartbeat_at = clock_timestamp() where w.id = p_worker_id and w.lost_at is null;
  alive := found;
  -- Served by an index of its own that holds nothing but such jobs; the one on running jobs may be full of dead entries.
  cancel_ids := array(select j.id from pgqueue.job_live j where j.worker_id = p_worker_id and j.cancel_requested_at is not null);
end
$$;
comment on function pgqueue.heartbeat is 'Keeps a worker and its jobs alive; returns the jobs it is asked to stop.';
