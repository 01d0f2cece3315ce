-- revive: puts one finished job back among the live, with fresh attempts. False: another live job, or a finished
-- one that still holds it, has its key; nothing has changed. The caller has locked the row, of a job of a flow the flow before it,
-- and then tells flow and children (resume_children).
--
-- Moves dead, cancelled → pending, scheduled, or blocked if parents of it have not ended. Locks the row; waits for an enqueue of the same key. Raises nothing.
-- Called by retry, retry_many, resume_children; not for users.
create or replace function pgqueue.revive(p_job pgqueue.job, p_run_at timestamptz) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_status text := case when p_run_at > v_now then 'scheduled' else 'pending' end;
  v_node   pgqueue.flow_node%rowtype;
begin
  if p_job.key is not null and pgqueue.held_key(p_job.queue, p_job.key) <> p_job.id then return false; end if;
  perform pgqueue.ensure_lane(p_job.queue, p_job.priority);
  if p_job.flow_id is not null then
    select n.* into v_node from pgqueue.flow_node n where n.job_id = p_job.id;
    if v_node.open_parents > 0 then v_status := 'blocked'; end if;
  end if;
  insert into pgqueue.job_live (id, rank_at, run_at, enqueued_at, token, timeout_seconds, priority, max_attempts, status, queue,
                                task, key, payload, progress, error_type, error, retry, key_ttl, retain_for, tags, meta, group_key,
                                waits_for, flow_id)
  values (p_job.id, case when p_run_at > v_now then p_run_at else v_now end, coalesce(p_run_at, v_now), p_job.enqueued_at,
          p_job.token, p_job.timeout_seconds, p_job.priority, p_job.max_attempts, v_status, p_job.queue, p_job.task, p_job.key,
          p_job.payload, p_job.progress, p_job.error_type, p_job.error, p_job.retry, p_job.key_ttl, p_job.retain_for,
          p_job.tags, p_job.meta, p_job.group_key, case v_status when 'blocked' then 'parents' end, v_node.flow_id)
  on conflict (queue, key) where key is not null do nothing;
  if not found then return false; end if;
  -- We may have waited for a job with the same key that finished and holds it: look again, with a fresh snapshot.
  if p_job.key is not null and pgqueue.held_key(p_job.queue, p_job.key, p_fresh => true) <> p_job.id then
    delete from pgqueue.job_live j where j.id = p_job.id;
    return false;
  end if;
  delete from pgqueue.job j where j.id = p_job.id and j.status = p_job.status and j.status in ('dead', 'cancelled');
  delete from pgqueue.key_hold h where h.queue = p_job.queue and h.key = p_job.key and h.job_id = p_job.id;
  insert into pgqueue.tally (at, jobs, outcome, queue, task) values (date_trunc('minute', v_now), 1, 'retried', p_job.queue, p_job.task);
  if v_status = 'pending' then perform pgqueue.wake(p_job.queue); end if;
  return true;
end
$$;
comment on function pgqueue.revive is 'Puts a dead or cancelled job back among the live. Not for users.';
