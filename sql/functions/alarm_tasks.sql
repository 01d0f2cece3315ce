-- alarm_tasks: tasks that fail everywhere at once: at least 20 attempts that failed within this minute and the last, on
-- whatever workers, and not one that succeeded. Each is returned once: again only after ten minutes without a failure.
--
-- Attempts that were lost with a worker do not count: one that is killed while it runs fifty jobs is no fault of their task.
-- It reads the metrics, not the jobs: a few rows.
--
-- Moves nothing. Locks the tasks' rows. Raises nothing.
-- Called by sweep_limits; not for users.
create or replace function pgqueue.alarm_tasks(p_failures integer default 20) returns text[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set jit = off set timezone = 'UTC'
as $$
declare
  v_minute timestamptz := date_trunc('minute', clock_timestamp());
  v_found  text[];
begin
  update pgqueue.task t set alarmed_at = null where t.alarmed_at < v_minute - interval '10 minutes'
    and not exists (select 1 from pgqueue.metric m where m.span_seconds = 60 and m.at >= v_minute - interval '10 minutes'
                    and m.task = t.task and m.failed + m.dead > 0);
  with failing as (
    select m.task from pgqueue.metric m where m.span_seconds = 60 and m.at >= v_minute - interval '1 minute'
    group by m.task having sum(m.failed + m.dead) >= p_failures and sum(m.completed) = 0
  ), found as (
    insert into pgqueue.task as t (task, alarmed_at) select f.task, clock_timestamp() from failing f order by f.task
    on conflict (task) do update set alarmed_at = excluded.alarmed_at where t.alarmed_at is null
    returning t.task)
  select array_agg(f.task order by f.task) into v_found from found f;
  return coalesce(v_found, '{}');
end
$$;
comment on function pgqueue.alarm_tasks is 'Tasks that fail everywhere at once, each found once. Not for users.';
