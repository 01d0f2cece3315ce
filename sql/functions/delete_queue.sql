-- delete_queue: forgets a queue, its settings and limits included: one that is misspelled, or not needed any more. False if
-- there is no such queue. Its finished jobs stay until their time is over. An enqueue makes it anew, with the defaults.
--
-- Moves nothing. Locks the queue's row, lanes, gate and groups. Raises PQ003 while jobs of it wait or run, while a worker
-- serves it, and while a recurring job is for it.
-- Called by operators.
create or replace function pgqueue.delete_queue(queue text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_use text;
begin
  perform pg_advisory_xact_lock(hashtextextended('pgqueue.queue:' || delete_queue.queue, 0));  -- as ensure_queue
  v_use := pgqueue.queue_use(delete_queue.queue);
  if v_use is not null then
    raise exception using errcode = 'PQ003', message = format('queue %L cannot be deleted: %s', delete_queue.queue, v_use);
  end if;
  return pgqueue.drop_queue(delete_queue.queue);
end
$$;
comment on function pgqueue.delete_queue is 'Forgets a queue that has no live job and no worker; false if there is none of this name.';
