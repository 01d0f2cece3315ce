-- pause_recurring: a recurring job is not due any more, until resume_recurring() or the given time. What would have been
-- due meanwhile is not made up for. Jobs that it has made already go on.
--
-- Moves nothing. Locks the row; waits for a tick of it. Raises PQ001 for a time that is not ahead, PQ002.
-- Called by operators.
create or replace function pgqueue.pause_recurring(name text, until timestamptz default null, reason text default null) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if pause_recurring.until <= clock_timestamp() or pause_recurring.until > '9999-12-30 00:00+00' then
    raise exception using errcode = 'PQ001', message = 'a pause ends at a time that lies ahead';
  end if;
  update pgqueue.recurring_job r set paused_at = clock_timestamp(), paused_until = pause_recurring.until,
    paused_reason = left(pause_recurring.reason, 1000)
  where r.name = pause_recurring.name;
  if not found then
    raise exception using errcode = 'PQ002', message = format('there is no recurring job %L', pause_recurring.name);
  end if;
  perform pg_notify('pgqueue', 'recurring changed');  -- the end of the pause may be the next thing to wake up for
end
$$;
comment on function pgqueue.pause_recurring is 'Stops a recurring job, with an end time if given.';
