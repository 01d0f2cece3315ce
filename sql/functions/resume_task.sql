-- resume_task: ends a pause. False: the task was not paused.
--
-- Moves blocked → pending, the first 20,000 at once, the rest by the next sweeps. Locks the task's row and the jobs. Raises nothing.
-- Called by operators.
create or replace function pgqueue.resume_task(task text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_circuit text;
begin
  update pgqueue.task t set paused_at = null, paused_until = null, paused_reason = null
    where t.task = resume_task.task and t.paused_at is not null returning t.circuit into v_circuit;
  if not found then return false; end if;
  if v_circuit = 'closed' then perform pgqueue.release_task(resume_task.task, 20000); end if;
  return true;
end
$$;
comment on function pgqueue.resume_task is 'Ends the pause of a task.';
