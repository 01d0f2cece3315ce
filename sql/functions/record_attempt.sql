-- record_attempt: remembers how a claim ended that did not complete its job, and counts it (complete does so for its own,
-- with the same buckets). A failure or a loss after which the job does not wait again is a death.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by fail, release, snooze, cancel_claimed, sweep, retire_worker; not for users.
create or replace function pgqueue.record_attempt(
  p_job pgqueue.job, p_outcome text, p_delay_seconds double precision default null,
  p_error_type text default null, p_error text default null, p_traceback text default null)
returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_dead boolean := p_outcome in ('failed', 'lost') and p_delay_seconds is null;
begin
  insert into pgqueue.job_attempt (job_id, started_at, finished_at, worker_id, token, delay_seconds, attempt, queue, task,
                                   outcome, error_type, error, traceback)
  values (p_job.id, p_job.started_at, v_now, p_job.worker_id, p_job.token, p_delay_seconds, p_job.attempt,
          p_job.queue, p_job.task, p_outcome, left(p_error_type, 200), left(p_error, 4000), left(p_traceback, 65536));
  insert into pgqueue.tally (at, jobs, wait_bucket, run_bucket, outcome, queue, task)
  select date_trunc('minute', v_now), 1,
         case when p_outcome = 'failed' then floor(ln(greatest(date_part('epoch', p_job.started_at - p_job.rank_at), 1e-4)) * 4 / ln(2.0::float8)) end,
         case when p_outcome = 'failed' then floor(ln(greatest(date_part('epoch', v_now - p_job.started_at), 1e-4)) * 4 / ln(2.0::float8)) end,
         case when v_dead then 'dead' else p_outcome end, p_job.queue, p_job.task;
end
$$;
comment on function pgqueue.record_attempt is 'Remembers how a claim ended. Not for users.';
