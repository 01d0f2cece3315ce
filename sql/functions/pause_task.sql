-- pause_task: no more jobs of this task are claimed, in any queue, until resume_task() or the given time. Running jobs go on.
--
-- Moves nothing: claims park the jobs that they meet. Locks the task's row. Raises PQ001 for a bad name or a time that is not ahead.
-- Called by operators.
create or replace function pgqueue.pause_task(task text, until timestamptz default null, reason text default null) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if pause_task.until <= clock_timestamp() or pause_task.until > '9999-12-30 00:00+00' then
    raise exception using errcode = 'PQ001', message = 'a pause ends at a time that lies ahead';
  end if;
  perform pgqueue.ensure_task(pause_task.task);
  update pgqueue.task t set paused_at = clock_timestamp(), paused_until = pause_task.until, paused_reason = left(pause_task.reason, 1000)
    where t.task = pause_task.task;
end
$$;
comment on function pgqueue.pause_task is 'Stops claims of a task, with an end time if given.';
