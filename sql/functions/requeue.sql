-- requeue: lets a running job wait again: at once, or for a number of seconds.
--
-- p_refund: the attempt is given back. The token is not: every claim has its own.
-- A job that goes back at once keeps its place (rank_at), unless the lane's hint has passed it; and its group's slot. One that
-- has to wait keeps the slot if the queue says that a retry holds its group.
--
-- Moves running → pending or scheduled. The caller has locked the row and decided.
-- Locks the row. Raises nothing.
-- Called by fail, release, snooze, sweep; not for users.
create or replace function pgqueue.requeue(p_job pgqueue.job, p_delay_seconds double precision, p_refund boolean,
                                           p_error_type text default null, p_error text default null)
returns text
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_run_at timestamptz := v_now + make_interval(secs => greatest(p_delay_seconds, 0));
  v_status text := case when p_delay_seconds > 0 then 'scheduled' else 'pending' end;
  v_hint   timestamptz;
begin
  select max(l.hint) into v_hint from pgqueue.lane l where l.queue = p_job.queue and l.priority = p_job.priority;
  update pgqueue.job_live j set
    status = v_status, worker_id = null,
    holds_slot = j.group_key is not null and (v_status = 'pending' or coalesce((
      select q.group_max_running is not null and q.group_on_retry = 'hold' from pgqueue.queue q where q.queue = j.queue), false)),
    run_at = case v_status when 'scheduled' then v_run_at else j.run_at end,
    rank_at = case when v_status = 'scheduled' then v_run_at
                   when v_hint > j.rank_at then v_now
                   else j.rank_at end,
    attempt = j.attempt - p_refund::integer,
    -- A handler that ran as far as to snooze did not kill its worker.
    crashes = case when p_refund and v_status = 'scheduled' then 0 else j.crashes end,
    retry_delay_seconds = case when p_refund then j.retry_delay_seconds else p_delay_seconds end,
    error_type = coalesce(left(p_error_type, 200), j.error_type), error = coalesce(left(p_error, 4000), j.error)
  where j.id = p_job.id;
  if v_status = 'pending' then perform pgqueue.wake(p_job.queue); end if;
  return v_status;
end
$$;
comment on function pgqueue.requeue is 'Lets a running job wait again. Not for users.';
