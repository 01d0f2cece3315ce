-- why_running: it runs; whether its worker lives, whether it should have ended by now, whether it was asked to stop.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_running(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_worker record;
  v_most   interval;
begin
  if p_job.status <> 'running' then return; end if;
  select w.id, w.name, w.lost_at, clock_timestamp() - w.heartbeat_at as silent, make_interval(secs => w.lease_seconds) as lease into v_worker
    from pgqueue.worker w where w.id = p_job.worker_id;
  select make_interval(secs => coalesce(p_job.timeout_seconds, q.timeout_seconds, s.timeout_seconds)) into v_most
    from pgqueue.setting s left join pgqueue.queue q on q.queue = p_job.queue;
  if v_worker.id is null or v_worker.lost_at is not null then
    return query select 'ghost', format('its worker %s is gone; the next sweep lets it wait again, or die if it has used up its attempts',
                                        coalesce(v_worker.name, p_job.worker_id::text)), 'pgqueue sweep';
  elsif v_worker.silent > v_worker.lease then
    return query select 'silent', format('its worker %s has not beaten for %s, its lease is %s: it hangs, has been stopped or cannot reach the database; '
      'the next sweep gives the job to another', v_worker.name, pgqueue.in_words(v_worker.silent), pgqueue.in_words(v_worker.lease)), 'pgqueue sweep';
  end if;
  if p_job.cancel_requested_at is not null then
    return query select 'cancel_requested', format('somebody asked it to stop %s ago (%s), and its handler has not yet',
      pgqueue.in_words(clock_timestamp() - p_job.cancel_requested_at), p_job.error), format('pgqueue workers show %s', p_job.worker_id);
  end if;
  if clock_timestamp() - p_job.started_at > v_most then
    return query select 'overdue', format('it has run for %s, longer than its time-out of %s: its handler does not stop',
      pgqueue.in_words(clock_timestamp() - p_job.started_at), pgqueue.in_words(v_most)), format('pgqueue workers drain %s, then restart it', p_job.worker_id);
  end if;
  return query select 'running', concat_ws(', ', format('it runs: attempt %s, for %s, on worker %s', p_job.attempt,
      pgqueue.in_words(clock_timestamp() - p_job.started_at), coalesce(v_worker.name, p_job.worker_id::text)),
      -- A figure or a word; the members of anything bigger may be secrets, and readers see this.
      'its worker beats', case when jsonb_typeof(p_job.progress) in ('number', 'string') then 'progress ' || left(p_job.progress::text, 100) end), format('pgqueue jobs cancel %s', p_job.id);
end
$$;
comment on function pgqueue.why_running is 'Reason: it runs. Not for users.';
