-- why_scheduled: its time has not come: delayed, after a failure, after a snooze.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_scheduled(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_in   text;
  v_last record;
  v_most integer;
begin
  if p_job.status <> 'scheduled' then return; end if;
  if p_job.run_at <= clock_timestamp() then
    return query select 'due', format('it has been due for %s; the next claim of its queue, or the next sweep, takes it up',
      pgqueue.in_words(clock_timestamp() - p_job.run_at)), 'pgqueue sweep';
    return;
  end if;
  if pgqueue.waits_for_rate(p_job) then return; end if;  -- see why_group_rate, why_group_throttled
  v_in := pgqueue.in_words(p_job.run_at - clock_timestamp());
  select a.outcome, concat_ws(': ', a.error_type, left(a.error, 300)) as error into v_last
    from pgqueue.job_attempt a where a.job_id = p_job.id order by a.token desc limit 1;
  select coalesce(p_job.max_attempts, q.max_attempts, s.max_attempts) into v_most
    from pgqueue.setting s left join pgqueue.queue q on q.queue = p_job.queue;
  return query select
    case v_last.outcome when 'failed' then 'retry' when 'lost' then 'retry_lost' when 'snoozed' then 'snoozed' else 'future' end,
    case v_last.outcome
      when 'failed' then format('attempt %s of %s failed; the next in %s; last error: %s', p_job.attempt, v_most, v_in, v_last.error)
      when 'lost' then format('its worker was lost at attempt %s of %s; the next in %s', p_job.attempt, v_most, v_in)
      when 'snoozed' then format('its handler asked to be run later: in %s', v_in)
      else format('it was enqueued for later: due in %s, at %s', v_in, p_job.run_at) end,
    -- What waits for its time cannot be hurried; cancelled jobs can be run at once.
    format('pgqueue jobs cancel %s && pgqueue jobs retry %s   # runs it now, with fresh attempts', p_job.id, p_job.id);
end
$$;
comment on function pgqueue.why_scheduled is 'Reason: its time has not come. Not for users.';
