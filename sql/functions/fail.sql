-- fail: the handlers raised. Each job is retried as its policy says, or dies.
--
-- Arrays run in parallel; p_retry_in, from 0 to ten years, overrides the policy's delay, p_fatal goes straight to dead. max_attempts
-- and the policy are those of the job, then of the queue, then the default, at this moment. A job whose
-- cancellation was asked for meanwhile is cancelled. One row for each id; status null: refused.
--
-- Moves running → scheduled, pending (no delay), dead or cancelled. Passes slots on, counts for circuit breakers.
-- Locks the rows by ascending id, then their groups, then their flows. Raises nothing of its own.
-- Called by workers.
create or replace function pgqueue.fail(
  p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_errors text[], p_error_types text[] default null,
  p_tracebacks text[] default null, p_retry_in double precision[] default null, p_fatal boolean[] default null)
returns table (id bigint, status text, delay_seconds double precision)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_job   pgqueue.job;
  v_limit record;
  v_i     integer;
  v_held  pgqueue.job[] := array(select j from pgqueue.lock_claimed(p_worker_id, p_ids, p_tokens) j);
begin
  foreach v_job in array v_held loop
    v_i := array_position(p_ids, v_job.id);
    id := v_job.id;
    delay_seconds := null;
    select coalesce(v_job.max_attempts, q.max_attempts, s.max_attempts) as attempts, coalesce(v_job.retry, q.retry, s.retry) as policy
      into v_limit from pgqueue.setting s left join pgqueue.queue q on q.queue = v_job.queue;
    if v_job.cancel_requested_at is not null then
      perform pgqueue.record_attempt(v_job, 'cancelled', null, p_error_types[v_i], p_errors[v_i], p_tracebacks[v_i]);
      perform pgqueue.finish(v_job.id, 'cancelled', null, null);
      status := 'cancelled';
    elsif p_fatal[v_i] or v_job.attempt >= v_limit.attempts then
      perform pgqueue.record_attempt(v_job, 'failed', null, p_error_types[v_i], p_errors[v_i], p_tracebacks[v_i]);
      perform pgqueue.finish(v_job.id, 'dead', left(p_error_types[v_i], 200), left(p_errors[v_i], 4000));
      status := 'dead';
    else
      delay_seconds := case when p_retry_in[v_i] between 0 and 315360000 then round(p_retry_in[v_i]::numeric, 6)
        else pgqueue.retry_delay(v_limit.policy, v_job.attempt, v_job.retry_delay_seconds) end;
      perform pgqueue.record_attempt(v_job, 'failed', delay_seconds, p_error_types[v_i], p_errors[v_i], p_tracebacks[v_i]);
      status := pgqueue.requeue(v_job, delay_seconds, false, p_error_types[v_i], p_errors[v_i]);
    end if;
    return next;
  end loop;
  perform pgqueue.leave_groups(array(select h.queue from unnest(v_held) h), array(select h.group_key from unnest(v_held) h), p_ran => true);
  perform pgqueue.count_outcomes(p_worker_id, array(select h.task from unnest(v_held) h), array(select h.id from unnest(v_held) h), true)
    where exists (select 1 from pgqueue.task t where t.breaker_rate is not null or t.circuit = 'half_open');
  perform pgqueue.leave_flows(array(select h.id from unnest(v_held) h where h.flow_id is not null));
  return query select u, null::text, null::double precision from unnest(p_ids) u
    where not exists (select 1 from unnest(v_held) h where h.id = u) order by u;
end
$$;
comment on function pgqueue.fail is 'The handlers raised: running → scheduled, or dead when attempts are used up.';
