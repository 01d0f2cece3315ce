-- drop_queue: a queue's row, settings, lanes, gate and groups go. False if there was nothing.
--
-- Two things cannot go yet. Its sequences: an enqueue() that has just read their names would fail. And the thought that
-- its lanes exist: a transaction that has seen them may still commit a job, which no claim would look for. So queue_gone
-- remembers it, until forget_queues() knows that no such transaction is left.
--
-- Moves nothing. Locks what it removes. Raises nothing; nothing is done before all its locks are there.
-- Called by delete_queue and forget_queues; not for users.
create or replace function pgqueue.drop_queue(p_queue text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id    integer;
  v_found boolean;
begin
  delete from pgqueue.queue q where q.queue = p_queue returning q.id into v_id;
  v_found := found;
  delete from pgqueue.queue_gate g where g.queue = p_queue;
  delete from pgqueue.queue_group g where g.queue = p_queue;
  delete from pgqueue.lane l where l.queue = p_queue;
  if not (found or v_found) then return false; end if;
  insert into pgqueue.queue_gone (queue, queue_id, gone_at) values (p_queue, v_id, clock_timestamp());
  return true;
end
$$;
comment on function pgqueue.drop_queue is 'Removes a queue''s row, lanes, gate and groups. Not for users.';
