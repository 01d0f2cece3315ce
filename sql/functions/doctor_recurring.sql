-- doctor_recurring: are recurring jobs made when they are due, and does a worker know their tasks?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_recurring() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_found boolean;
begin
  return query
    select case s.state when 'late' then 'warning' else 'broken' end,
           case s.state when 'late' then format('recurring job %s has been due for %s, and nobody has made its job', s.name, pgqueue.in_words(clock_timestamp() - s.next_run_at))
                else format('recurring job %s is broken since %s: %s', s.name, pgqueue.in_words(clock_timestamp() - s.broken_at), s.broken_reason) end,
           case s.state when 'late' then 'let a ticker run: pgqueue cron -A module:app' else format('pgqueue recurring edit %s; see pgqueue recurring show %s', s.name, s.name) end
    from pgqueue.recurring_status s where s.state in ('broken', 'late') limit 20;
  v_found := found;
  return query
    select 'broken', format('recurring job %s: no live worker that serves queue %s knows task %s', r.name, r.queue, r.task),
           format('deploy the code that has it, or: pgqueue recurring pause %s', r.name)
    from pgqueue.recurring_job r
    where r.active and r.broken_at is null and not (r.paused_at is not null and coalesce(r.paused_until > clock_timestamp(), true))
      -- Workers are there, and all of them say which tasks they know.
      and (select bool_and(coalesce(not (w.info -> 'tasks') ? r.task, false)) from pgqueue.worker w
           where r.queue = any (w.queues) and w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds))
    order by r.name limit 20;
  if not (found or v_found) then
    return query select 'ok', format('%s are as they should be', count(*)), null::text from pgqueue.recurring_job r where r.active;
  end if;
end
$$;
comment on function pgqueue.doctor_recurring is 'A check of doctor. Not for users.';
