-- resume_recurring: ends a pause; due times count from now. False: it was not paused.
--
-- Moves nothing. Locks the row. Raises PQ002. Called by operators.
create or replace function pgqueue.resume_recurring(name text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  update pgqueue.recurring_job r set paused_at = null, paused_until = null, paused_reason = null,
    version = r.version + 1, planned = false, next_run_at = null,
    -- The pause may have ended by itself, and no ticker has seen it.
    planned_from = greatest(r.planned_from, least(r.paused_until, clock_timestamp()))
  where r.name = resume_recurring.name and r.paused_at is not null;
  if found then
    perform pg_notify('pgqueue', 'recurring changed');
    return true;
  end if;
  perform 1 from pgqueue.recurring_job r where r.name = resume_recurring.name;
  if not found then
    raise exception using errcode = 'PQ002', message = format('there is no recurring job %L', resume_recurring.name);
  end if;
  return false;
end
$$;
comment on function pgqueue.resume_recurring is 'Ends a pause of a recurring job.';
