-- retry: runs a dead or cancelled job again, with fresh attempts; payload, attempts and time changed if given.
-- It keeps its id, key and history. In a flow it brings back what its end had stopped.
--
-- Moves dead, cancelled → pending or scheduled; blocked, if it runs after something unfinished. Locks its flow and the row. Raises PQ002 no such job, PQ003 not dead or
-- cancelled, PQ004 its key is taken meanwhile, PQ001, PQ006.
-- Called by operators and by users.
create or replace function pgqueue.retry(
  id bigint, payload jsonb default null, max_attempts integer default null, run_at timestamptz default null)
returns text
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_job    pgqueue.job%rowtype;
  v_status text;
  v_max    integer;
begin
  perform pgqueue.lock_flows(array[retry.id]);
  -- Twice: ensure_partitions() may just be moving it.
  for i in 1 .. 2 loop
    select j.* into v_job from pgqueue.job j where j.id = retry.id and j.status in ('dead', 'cancelled') for update;
    exit when found;
  end loop;
  if v_job.id is null then
    select j.status into v_status from pgqueue.job j where j.id = retry.id;
    if found then
      raise exception using errcode = 'PQ003', message = format('job %s is %s: only a dead or cancelled job can be retried', retry.id, v_status);
    end if;
    raise exception using errcode = 'PQ002', message = format('there is no job %s', coalesce(retry.id::text, 'null'));
  end if;
  if retry.payload is not null then
    select s.payload_max_bytes into v_max from pgqueue.setting s;
    perform pgqueue.check_payload(retry.payload, v_max);
    v_job.payload := retry.payload;
  end if;
  perform pgqueue.check_job(v_job.queue, v_job.task, null, 'skip', null, v_job.priority, retry.run_at, null, retry.max_attempts,
                            null, null, null, null, null);
  v_job.max_attempts := coalesce(retry.max_attempts, v_job.max_attempts);
  if not pgqueue.revive(v_job, retry.run_at) then
    raise exception using errcode = 'PQ004',
      message = format('job %s cannot be retried: another job has its key %L in queue %L', v_job.id, v_job.key, v_job.queue),
      hint = 'Let that one finish, or cancel it.';
  end if;
  if v_job.flow_id is not null then perform pgqueue.resume_children(array[v_job.id]); end if;
  select j.status into v_status from pgqueue.job_live j where j.id = retry.id;
  return v_status;
end
$$;
comment on function pgqueue.retry is 'Runs a dead or cancelled job again, with fresh attempts.';
