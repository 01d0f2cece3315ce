-- run_recurring_now: one job of a recurring job, at once, whatever its schedule says; also while it is paused. The next
-- due time stays as it is. With overlap replace the last job gives way to it. Returns the id of the new job.
--
-- Moves → pending; with overlap replace the last job → cancelled. Locks the row; waits for a tick of it.
-- Raises PQ002, and PQ003 if the last job is live and overlap is skip; else as enqueue. Called by operators.
create or replace function pgqueue.run_recurring_now(name text) returns bigint
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_row pgqueue.recurring_job;
  v_run pgqueue.recurring_run;
begin
  select r.* into v_row from pgqueue.recurring_job r where r.name = run_recurring_now.name for update;
  if not found then
    raise exception using errcode = 'PQ002', message = format('there is no recurring job %L', run_recurring_now.name);
  end if;
  loop
    v_run := pgqueue.fire_recurring(v_row, clock_timestamp(), true);
    exit when v_run.name is not null;  -- else this very microsecond is taken
  end loop;
  if v_run.job_id is null then
    raise exception using errcode = 'PQ003',
      message = format('job %s of recurring job %L is not finished, and its overlap is skip', v_row.last_job_id, v_row.name),
      hint = 'Wait for it, or cancel it.';
  end if;
  update pgqueue.recurring_job r set last_job_id = v_run.job_id where r.name = v_row.name;
  return v_run.job_id;
end
$$;
comment on function pgqueue.run_recurring_now is 'Enqueues one job of a recurring job at once; returns its id.';
