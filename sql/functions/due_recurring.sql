-- due_recurring: what a ticker should look at now: definitions that are due, that have yet to be planned, or that were
-- broken and may be whole again. The last row has no name: it says what time it is here and when to ask again.
--
-- A ticker computes due times from these rows and nothing else, its own clock least of all; then it calls tick().
-- "take" is how many due times it need not look beyond, the latest first: one more than can become jobs, so that tick()
-- learns whether something was left out.
--
-- task_unknown: live workers serve the queue, all of them say which tasks they know, and none knows this one.
--
-- Moves nothing. Locks nothing. Raises nothing. Called by tickers.
create or replace function pgqueue.due_recurring(p_limit integer default 200)
returns table (
  name text, version integer, task text, source text, cron text, every interval, timezone text, starts_at timestamptz,
  ends_at timestamptz, after timestamptz, take integer, broken boolean, task_unknown boolean, now timestamptz, wake_at timestamptz)
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
begin
  p_limit := greatest(p_limit, 0);
  return query
    with looked as (
      select r, r.name,
             case when r.paused_at is not null and coalesce(r.paused_until > v_now, true) then r.paused_until
                  when r.broken_at is not null then r.recheck_at
                  when r.planned then r.next_run_at
                  else v_now end as look_at
      from pgqueue.recurring_job r where r.active
    ), due as (
      select (l.r).* from looked l where l.look_at <= v_now order by l.look_at, l.name limit p_limit
    )
    select d.name, d.version, d.task, d.source, d.cron, d.every, d.timezone, d.starts_at, d.ends_at,
           pgqueue.recurring_after(d::pgqueue.recurring_job, v_now),
           case d.catch_up when 'all' then d.catch_up_max + 1 else 2 end, d.broken_at is not null,
           coalesce((select bool_and(coalesce(not (w.info -> 'tasks') ? d.task, false)) from pgqueue.worker w
                     where w.lost_at is null and w.heartbeat_at > v_now - make_interval(secs => w.lease_seconds)
                       and d.queue = any (w.queues)), false),
           v_now, null::timestamptz
    from due d
    union all
    select null, null, null, null, null, null, null, null, null, null, null, null, null, v_now,
           case when (select count(*) from due) >= p_limit then v_now
                else (select min(l.look_at) from looked l where l.look_at > v_now) end;
end
$$;
comment on function pgqueue.due_recurring is 'The recurring jobs that a ticker should look at now, and when it should ask again.';
