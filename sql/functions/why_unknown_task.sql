-- why_unknown_task: live workers serve its queue, but not all of them know its task.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_unknown_task(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_know record;
begin
  if p_job.status in ('completed', 'dead', 'cancelled') or p_job.task is null then return; end if;
  select count(*) as workers, count(*) filter (where not w.info -> 'tasks' ? p_job.task) as strangers,
         string_agg(w.name, ', ' order by w.id) filter (where not w.info -> 'tasks' ? p_job.task) as names
    into v_know from pgqueue.worker w
    where p_job.queue = any (w.queues) and w.lost_at is null and jsonb_typeof(w.info -> 'tasks') = 'array'
      and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds);
  if v_know.strangers > 0 then
    return query select 'unknown_task', format('%s of the live workers that serve queue %s %s know task %s: its attempts fail there (%s)',
        case when v_know.strangers = v_know.workers then 'none' else v_know.strangers || ' of ' || v_know.workers end, p_job.queue,
        case when v_know.strangers = v_know.workers then '' else 'do not' end, p_job.task, left(v_know.names, 200)),
      'deploy the code that has the task to them, or let them serve other queues';
  end if;
end
$$;
comment on function pgqueue.why_unknown_task is 'Reason: live workers do not know its task. Not for users.';
