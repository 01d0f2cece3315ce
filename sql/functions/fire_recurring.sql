-- fire_recurring: deals with one due time of a definition whose row the caller has locked: enqueues its job, unless the
-- last one is live and must not have company, or it comes too late to start. Null: it was dealt with before.
--
-- The job's meta says where it comes from: {"recurring": name, "due_at": …}.
--
-- Moves → pending or scheduled (jitter); with overlap replace the last job → cancelled. Locks the new row, and the last
-- job's with overlap replace. Raises as enqueue. Called by tick, run_recurring_now; not for users.
create or replace function pgqueue.fire_recurring(p_row pgqueue.recurring_job, p_due_at timestamptz, p_manual boolean)
returns pgqueue.recurring_run
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_run    pgqueue.recurring_run;
  v_run_at timestamptz := p_due_at;
  v_live   boolean;
begin
  v_run := (p_row.name, p_due_at, clock_timestamp(), 'overlapped', null);
  v_live := p_row.overlap <> 'allow' and exists (select 1 from pgqueue.job_live j where j.id = p_row.last_job_id);
  if not p_manual then v_run_at := p_due_at + p_row.jitter * random(); end if;
  if p_due_at + p_row.expires_in <= greatest(v_run_at, v_run.fired_at) then
    v_run.outcome := 'expired';
  elsif not v_live or p_row.overlap = 'replace' then
    v_run.outcome := case when p_manual then 'manual' else 'enqueued' end;
    v_run.job_id := 0;  -- not known yet
  end if;
  insert into pgqueue.recurring_run values (v_run.*) on conflict (name, due_at) do nothing;
  if not found then return null; end if;
  if v_run.job_id is null then return v_run; end if;

  if v_live then
    begin
      perform pgqueue.cancel(p_row.last_job_id, format('replaced by the job that is due at %s', p_due_at));
    exception when sqlstate 'PQ002' then
      null;  -- it has just finished, and nothing of it was to be kept
    end;
  end if;
  select e.id into v_run.job_id from pgqueue.enqueue(
    p_row.queue, p_row.task, p_row.payload, priority => p_row.priority, run_at => v_run_at,
    expires_at => p_due_at + p_row.expires_in, max_attempts => p_row.max_attempts, retry => p_row.retry,
    timeout_seconds => p_row.timeout_seconds, tags => p_row.tags, retain_for => p_row.retain_for, group_key => p_row.group_key,
    meta => coalesce(p_row.meta, '{}') || jsonb_build_object('recurring', p_row.name,
      'due_at', to_char(p_due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) e;
  update pgqueue.recurring_run r set job_id = v_run.job_id where r.name = p_row.name and r.due_at = p_due_at;
  return v_run;
end
$$;
comment on function pgqueue.fire_recurring is 'Deals with one due time of a recurring job. Not for users.';
