-- doctor_tasks: do the workers know the tasks of the jobs that wait? Of each queue the first thousand are looked at.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_tasks() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'broken', format('queue %s: no live worker that serves it knows task %s', t.queue, t.task),
           'deploy the code that has it, or cancel the jobs: ' || format('pgqueue jobs cancel -q %s -t %s', t.queue, t.task)
    from (select distinct j.queue, j.task from (select distinct l.queue, l.priority from pgqueue.lane l where l.priority is not null) l
          cross join lateral (select j.queue, j.task from pgqueue.job_live j where j.queue = l.queue and j.priority = l.priority
                              and j.status = 'pending' order by j.rank_at limit 1000) j) t
    where exists (select 1 from pgqueue.worker w where t.queue = any (w.queues) and jsonb_typeof(w.info -> 'tasks') = 'array' and w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds))
      and not exists (select 1 from pgqueue.worker w where t.queue = any (w.queues) and w.info -> 'tasks' ? t.task and w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds));
  if not found then return query select 'ok', 'workers know the tasks of what waits', null::text; end if;
end
$$;
comment on function pgqueue.doctor_tasks is 'A check of doctor. Not for users.';
