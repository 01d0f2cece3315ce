-- why_blocked: it waits for other jobs.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_blocked(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  -- What it waits for when it is parked for its group or its task are reasons of their own.
  if p_job.status = 'blocked' and p_job.waits_for is null then
    return query select 'blocked', 'it waits for other jobs to end', format('pgqueue jobs cancel %s', p_job.id);
  end if;
end
$$;
comment on function pgqueue.why_blocked is 'Reason: it waits for other jobs. Not for users.';
