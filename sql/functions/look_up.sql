-- look_up: how a job is doing: what its enqueuer may know. No row: there is no such job, or it has been pruned.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by everyone, and again and again by those who wait for a result: a live job costs one index probe.
create or replace function pgqueue.look_up(
  id bigint, out queue text, out task text, out status text, out attempt smallint, out max_attempts smallint, out result jsonb,
  out progress jsonb, out error_type text, out error text, out key text, out tags text[], out enqueued_at timestamptz,
  out run_at timestamptz, out started_at timestamptz, out finished_at timestamptz)
returns setof record
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_job pgqueue.job%rowtype;
begin
  select j.* into v_job from pgqueue.job_live j where j.id = look_up.id;
  if not found then
    select j.* into v_job from pgqueue.job j where j.id = look_up.id and j.status in ('completed', 'cancelled', 'dead');
    if not found then return; end if;
  end if;
  select coalesce(v_job.max_attempts, q.max_attempts, s.max_attempts) into max_attempts
    from pgqueue.setting s left join pgqueue.queue q on q.queue = v_job.queue;
  queue := v_job.queue; task := v_job.task; status := v_job.status; attempt := v_job.attempt; result := v_job.result;
  progress := v_job.progress; error_type := v_job.error_type; error := v_job.error; key := v_job.key; tags := v_job.tags;
  enqueued_at := v_job.enqueued_at; run_at := v_job.run_at; started_at := v_job.started_at; finished_at := v_job.finished_at;
  return next;
end
$$;
comment on function pgqueue.look_up is 'How a job is doing, what it returned or why it failed.';
