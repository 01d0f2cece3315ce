-- waits_for_rate: whether a scheduled job waits because its group's rate, or a throttle, let it start no sooner; not
-- because it was enqueued for then, or its last attempt put it off.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why's reasons; not for users.
create or replace function pgqueue.waits_for_rate(p_job pgqueue.job) returns boolean
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
begin
  -- A slot is given to jobs that could start; what a job then waits for is the group. Only a retry keeps the slot it had.
  return p_job.status = 'scheduled' and p_job.holds_slot and p_job.group_key is not null and not exists (
    select 1 from (select a.finished_at, a.delay_seconds from pgqueue.job_attempt a where a.job_id = p_job.id order by a.token desc limit 1) a
    where abs(extract(epoch from p_job.run_at - a.finished_at) - a.delay_seconds) < 2);
end
$$;
comment on function pgqueue.waits_for_rate is 'Whether a scheduled job waits for the rate of its group. Not for users.';
