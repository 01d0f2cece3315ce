-- why_queue: what holds up a queue; the first row is the reason, further rows hold besides. See why.
--
-- The reasons are those of jobs, asked for jobs that stand for all: the first that is pending, the first of each task that is
-- held back, and the first of each group that is; of tasks and groups five at most, for people to read.
--
-- Moves nothing. Locks nothing. Raises PQ002.
-- Called by operators and readers.
create or replace function pgqueue.why_queue(queue text) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  c_most   constant integer := 5;
  v_job    pgqueue.job%rowtype;
  v_one    pgqueue.job%rowtype;
  v_reason text;
begin
  if not exists (select 1 from pgqueue.queue q where q.queue = why_queue.queue)
     and not exists (select 1 from pgqueue.lane l where l.queue = why_queue.queue) then
    raise exception using errcode = 'PQ002', message = format('there is no queue %L', why_queue.queue);
  end if;
  -- Found lane by lane, as the index has it.
  select j.* into v_job
    from (select distinct l.priority from pgqueue.lane l where l.queue = why_queue.queue and l.priority is not null) l
    cross join lateral (select j.* from pgqueue.job_live j where j.queue = why_queue.queue and j.priority = l.priority and j.status = 'pending'
                        order by j.rank_at limit 1) j
    order by j.rank_at limit 1;
  v_job.id := null;  -- it stands for others: nothing is said of itself
  v_job.queue := why_queue.queue;
  foreach v_reason in array '{why_paused, why_throttled, why_queue_full, why_queue_rate}'::text[] loop
    return query execute format('select r.reason, r.explanation, r.remedy from pgqueue.%I($1) r', v_reason) using v_job;
  end loop;
  for v_one in
    select h.* from pgqueue.task t cross join lateral (
      select j.* from pgqueue.job j where j.task = t.task and j.queue = why_queue.queue and j.waits_for = 'task' and j.status = 'blocked'
      order by j.rank_at limit 1) h
    where t.paused_at is not null or t.circuit <> 'closed' order by t.task limit c_most
  loop
    v_one.id := null;
    foreach v_reason in array '{why_task_paused, why_circuit_open, why_circuit_half_open}'::text[] loop
      return query execute format('select r.reason, r.explanation, r.remedy from pgqueue.%I($1) r', v_reason) using v_one;
    end loop;
  end loop;
  for v_one in
    select h.* from unnest(pgqueue.next_groups(why_queue.queue, '', c_most)) u (group_key) cross join lateral (
      select j.* from pgqueue.job j where j.queue = why_queue.queue and j.group_key = u.group_key and j.waits_for = 'group' and j.status = 'blocked'
      limit 1) h
  loop
    v_one.id := null;
    foreach v_reason in array '{why_group_paused, why_group_throttled, why_group_full, why_group_retry, why_group_turn, why_group_rate}'::text[] loop
      return query execute format('select r.reason, r.explanation, r.remedy from pgqueue.%I($1) r', v_reason) using v_one;
    end loop;
  end loop;
  foreach v_reason in array '{why_unserved, why_unknown_task, why_versions, why_held, why_backlog}'::text[] loop
    return query execute format('select r.reason, r.explanation, r.remedy from pgqueue.%I($1) r', v_reason) using v_job;
  end loop;
end
$$;
comment on function pgqueue.why_queue is 'What holds up a queue, and what changes it.';
