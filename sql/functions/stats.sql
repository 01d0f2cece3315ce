-- stats: what ended between two moments and how long it had waited and run, without looking at a single job.
--
-- by: task (a row a task of a queue), queue, minute or hour (a row a queue and moment; with of_task: of that task). Moments
-- are whole minutes; whole hours where the minutes are gone, after two days. What the last batches counted is there
-- at once. Waits and runs are of attempts that completed or failed; a percentile is exact to the width of its bucket, 19 %, and
-- interpolated within. enqueued (by queue) is an estimate: what left the queue, and by how much it grew between two
-- samples, each up to a minute away.
--
-- Moves nothing. Locks nothing. Raises PQ001. Called by operators and readers, and by task_stats and queue_stats.
create or replace function pgqueue.stats(
  since timestamptz default clock_timestamp() - interval '1 hour', until timestamptz default clock_timestamp(),
  of_queue text default null, of_task text default null, by text default 'task')
returns table (queue text, task text, at timestamptz, completed bigint, failed bigint, dead bigint, cancelled bigint, expired bigint,
               lost bigint, snoozed bigint, released bigint, retried bigint, enqueued bigint, per_second double precision,
               wait_p50_seconds double precision, wait_p95_seconds double precision, wait_p99_seconds double precision,
               run_p50_seconds double precision, run_p95_seconds double precision, run_p99_seconds double precision,
               run_mean_seconds double precision)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set timezone = 'UTC' set jit = off
as $$
#variable_conflict use_column
declare
  c_kept   constant timestamptz := clock_timestamp() - interval '2 days' + interval '1 minute';
  v_since  timestamptz := date_trunc('minute', least(greatest(stats.since, '2000-01-01 00:00+00'), clock_timestamp()));
  v_until  timestamptz := least(stats.until, clock_timestamp());
  v_hours  timestamptz;  -- from here to v_minutes by the hour, before and after by the minute
  v_minutes timestamptz;
  v_seconds double precision;
begin
  if stats.by is null or stats.by not in ('task', 'queue', 'minute', 'hour') then
    raise exception using errcode = 'PQ001', message = 'stats are by task, queue, minute or hour';
  elsif stats.since is null or stats.until is null or stats.since >= stats.until then
    raise exception using errcode = 'PQ001', message = 'stats need a time since and a later time until';
  end if;
  if stats.by <> 'minute' and (v_since < c_kept or stats.by = 'hour') then v_since := date_trunc('hour', v_since); end if;
  v_hours := date_trunc('hour', v_since + interval '59 minutes 59 seconds');
  v_minutes := case when stats.by = 'hour' or v_until < c_kept then v_until else date_trunc('hour', v_until) end;
  if stats.by = 'minute' or v_minutes < v_hours then v_hours := v_until; v_minutes := v_until; end if;
  v_seconds := case stats.by when 'minute' then 60 when 'hour' then 3600 else greatest(date_part('epoch', v_until - v_since), 1) end;

  return query
    with found as (
      select m.queue, m.task, m.at, m.completed, m.failed, m.dead, m.cancelled, m.expired, m.lost, m.snoozed, m.released, m.retried,
             m.wait_buckets, m.wait_counts, m.run_buckets, m.run_counts
      from pgqueue.metric m
      where (m.span_seconds = 3600 and m.at >= v_hours and m.at < v_minutes
             or m.span_seconds = 60 and (m.at >= v_since and m.at < v_hours and m.at < v_until or m.at >= v_minutes and m.at < v_until))
        and (stats.of_queue is null or m.queue = stats.of_queue) and (stats.of_task is null or m.task = stats.of_task)
      union all
      select t.queue, t.task, case when stats.by = 'hour' then date_trunc('hour', t.at) else t.at end,
             t.jobs * (t.outcome = 'completed')::int, t.jobs * (t.outcome = 'failed')::int, t.jobs * (t.outcome = 'dead')::int,
             t.jobs * (t.outcome = 'cancelled')::int, t.jobs * (t.outcome = 'expired')::int, t.jobs * (t.outcome = 'lost')::int,
             t.jobs * (t.outcome = 'snoozed')::int, t.jobs * (t.outcome = 'released')::int, t.jobs * (t.outcome = 'retried')::int,
             array[t.wait_bucket], array[t.jobs], array[t.run_bucket], array[t.jobs]
      from pgqueue.tally t where t.at >= v_since and t.at < v_until
        and (stats.of_queue is null or t.queue = stats.of_queue) and (stats.of_task is null or t.task = stats.of_task)
    ), grouped as (
      select f.queue, case when stats.by = 'task' or stats.of_task is not null then f.task end as task,
             case when stats.by in ('minute', 'hour') then f.at end as at, f.completed, f.failed, f.dead, f.cancelled, f.expired, f.lost,
             f.snoozed, f.released, f.retried, f.wait_buckets, f.wait_counts, f.run_buckets, f.run_counts
      from found f
    ), counted as (
      select g.queue, g.task, g.at, sum(g.completed)::bigint as completed, sum(g.failed)::bigint as failed, sum(g.dead)::bigint as dead,
             sum(g.cancelled)::bigint as cancelled, sum(g.expired)::bigint as expired, sum(g.lost)::bigint as lost,
             sum(g.snoozed)::bigint as snoozed, sum(g.released)::bigint as released, sum(g.retried)::bigint as retried
      from grouped g group by g.queue, g.task, g.at
    ), bucket as (
      select g.queue, g.task, g.at, true as waits, u.bucket, sum(u.n)::double precision as n
      from grouped g, unnest(g.wait_buckets, g.wait_counts) u (bucket, n) where u.bucket is not null group by 1, 2, 3, 5
      union all
      select g.queue, g.task, g.at, false, u.bucket, sum(u.n)
      from grouped g, unnest(g.run_buckets, g.run_counts) u (bucket, n) where u.bucket is not null group by 1, 2, 3, 5
    ), ranked as (
      select b.queue, b.task, b.at, b.waits, b.bucket, b.n, sum(b.n) over w - b.n as below,
             sum(b.n) over (partition by b.queue, b.task, b.at, b.waits) as total
      from bucket b window w as (partition by b.queue, b.task, b.at, b.waits order by b.bucket)
    ), reached as (
      select r.queue, r.task, r.at, r.waits, sum(r.n * power(2.0::float8, (r.bucket + 0.5) / 4)) / max(r.total) as mean,
             max(power(2.0::float8, (r.bucket + (0.50 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.50 * r.total and r.below + r.n >= 0.50 * r.total) as p50,
             max(power(2.0::float8, (r.bucket + (0.95 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.95 * r.total and r.below + r.n >= 0.95 * r.total) as p95,
             max(power(2.0::float8, (r.bucket + (0.99 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.99 * r.total and r.below + r.n >= 0.99 * r.total) as p99
      from ranked r group by r.queue, r.task, r.at, r.waits
    ), live as not materialized (  -- asked twice a queue, by its index: 40 queues took 1.4 s to scan two days of samples
      select s.queue, s.pending + s.scheduled + s.blocked + s.running as jobs, s.at from pgqueue.queue_sample s
      where stats.by = 'queue' and stats.of_task is null
    )
    select c.queue, c.task, c.at, c.completed, c.failed, c.dead, c.cancelled, c.expired, c.lost, c.snoozed, c.released, c.retried,
           greatest(c.completed + c.dead + c.cancelled + c.expired - c.retried
             + (select l.jobs from live l where l.queue = c.queue and l.at <= v_until order by l.at desc limit 1)
             - (select l.jobs from live l where l.queue = c.queue and l.at <= v_since order by l.at desc limit 1), 0),
           c.completed / v_seconds, w.p50, w.p95, w.p99, r.p50, r.p95, r.p99, r.mean
    from counted c
    -- Not "is not distinct from": that cannot be hashed, and a day of minutes took three seconds.
    left join reached w on w.waits and (w.queue, coalesce(w.task, ''), coalesce(w.at, '-infinity')) = (c.queue, coalesce(c.task, ''), coalesce(c.at, '-infinity'))
    left join reached r on not r.waits and (r.queue, coalesce(r.task, ''), coalesce(r.at, '-infinity')) = (c.queue, coalesce(c.task, ''), coalesce(c.at, '-infinity'))
    order by c.queue, c.task, c.at;
end
$$;
comment on function pgqueue.stats is 'What ended between two moments, and percentiles of waits and runs, from the metrics.';
