-- drain: asks a worker to claim no more, finish what it runs and end. It hears of it by a notification, else within
-- seconds by asking. False: no such worker lives.
--
-- Moves nothing. Locks the worker's row. Raises nothing.
-- Called by operators.
create or replace function pgqueue.drain(worker_id bigint) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
begin
  update pgqueue.worker w set drain_requested_at = coalesce(w.drain_requested_at, clock_timestamp())
    where w.id = drain.worker_id and w.lost_at is null;
  if not found then return false; end if;
  perform pg_notify('pgqueue', 'drain ' || drain.worker_id);
  return true;
end
$$;
comment on function pgqueue.drain is 'Asks a worker to finish what it runs and to end.';
