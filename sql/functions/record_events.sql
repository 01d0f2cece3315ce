-- record_events: writes the events of one statement.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by the triggers that set_events makes; not for users.
create or replace function pgqueue.record_events() returns trigger
language plpgsql volatile security definer
-- The plan of its own: it runs within functions that pin theirs to nested loops, which over two batches are quadratic.
set search_path = pgqueue, pg_temp set jit = off set enable_hashjoin = on set enable_mergejoin = on set enable_seqscan = on
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  if tg_op = 'INSERT' then
    insert into pgqueue.event (at, xid, job_id, worker_id, token, attempt, status, queue, task, error_type)
      select v_now, pg_current_xact_id(), n.id, n.worker_id, n.token, n.attempt, n.status, n.queue, n.task,
             case when n.status <> 'completed' then n.error_type end
      from new_jobs n;
  else
    insert into pgqueue.event (at, xid, job_id, worker_id, token, attempt, status, queue, task, error_type)
      select v_now, pg_current_xact_id(), n.id, n.worker_id, n.token, n.attempt, n.status, n.queue, n.task,
             case when n.status <> 'running' then n.error_type end
      from new_jobs n join old_jobs o on o.id = n.id where o.status <> n.status;
  end if;
  return null;
end
$$;
comment on function pgqueue.record_events is 'Writes the events of one statement. Not for users.';
