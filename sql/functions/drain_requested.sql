-- drain_requested: whether an operator wants this worker to end.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by workers, when they are notified and every few seconds, so that a lost notification does no harm.
create or replace function pgqueue.drain_requested(p_worker_id bigint) returns boolean
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
begin
  return exists (select 1 from pgqueue.worker w where w.id = p_worker_id and w.drain_requested_at is not null);
end
$$;
comment on function pgqueue.drain_requested is 'Whether an operator wants this worker to end.';
