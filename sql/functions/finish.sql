-- finish: moves one live job to where finished jobs are. The caller has locked the row and decided; and tells its flow
-- (leave_flows).
--
-- Moves any live status → cancelled or dead. (complete() moves the completed, many at once.)
-- Locks the row. Raises nothing.
-- Called by fail, cancel, cancel_claimed, sweep, cancel_flow_jobs and others; not for users.
create or replace function pgqueue.finish(p_id bigint, p_status text, p_error_type text, p_error text) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_job  pgqueue.job%rowtype;
  v_keep interval;
begin
  delete from pgqueue.job_live j where j.id = p_id returning j.* into v_job;
  -- A short retain_for is meant for successes: a dead letter stays at least as long as the queue says.
  select case p_status when 'dead' then greatest(v_job.retain_for, coalesce(q.retain_dead, s.retain_dead))
         else coalesce(v_job.retain_for, q.retain_completed, s.retain_completed) end
    into v_keep from pgqueue.setting s left join pgqueue.queue q on q.queue = v_job.queue;
  -- One that ran has been counted with its attempt: see record_attempt.
  if v_job.status <> 'running' then
    insert into pgqueue.tally (at, jobs, outcome, queue, task) values (date_trunc('minute', v_now), 1, p_status, v_job.queue, v_job.task);
  end if;
  v_job.status := p_status;
  v_job.holds_slot := false;
  v_job.waits_for := null;
  v_job.finished_at := v_now;
  v_job.prune_at := v_now + v_keep;
  v_job.error_type := coalesce(p_error_type, v_job.error_type);
  v_job.error := coalesce(p_error, v_job.error);
  if p_status = 'dead' then
    insert into pgqueue.job_dead values (v_job.*);
  elsif v_keep > interval '0' then
    insert into pgqueue.job_done values (v_job.*);
  end if;
  if v_job.key_ttl is not null and v_job.key is not null then
    insert into pgqueue.key_hold as h (queue, key, job_id, held_until)
      values (v_job.queue, v_job.key, v_job.id, v_now + v_job.key_ttl)
      on conflict (queue, key) do update set job_id = excluded.job_id, held_until = excluded.held_until;
  end if;
end
$$;
comment on function pgqueue.finish is 'Moves one live job to the cancelled or dead. Not for users.';
