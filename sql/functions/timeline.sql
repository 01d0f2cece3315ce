-- timeline: what ended in each of equal steps of time, how long it had waited and run, and how deep the queues were: what a
-- chart needs. All queues and tasks together, or one of them; a step in which nothing happened has a row of zeros.
--
-- From the metrics, by the minute for steps below an hour (they are kept for two days), else by the hour. Percentiles come
-- from the merged histograms: those of several queues cannot be had from stats() of each. Depths come from the samples that
-- roll_up() takes once a minute: waiting and running on average, oldest_waiting_seconds at worst; null: there is none.
--
-- Moves nothing. Locks nothing. Raises PQ001. Called by operators and readers: the web page.
create or replace function pgqueue.timeline(
  since timestamptz, until timestamptz default clock_timestamp(), step interval default '1 minute', of_queue text default null, of_task text default null)
returns table (at timestamptz, completed bigint, failed bigint, dead bigint, cancelled bigint, expired bigint, lost bigint,
               wait_p50_seconds double precision, wait_p95_seconds double precision, wait_p99_seconds double precision,
               run_p50_seconds double precision, run_p95_seconds double precision, run_p99_seconds double precision,
               waiting double precision, running double precision, oldest_waiting_seconds double precision)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set timezone = 'UTC' set jit = off
as $$
#variable_conflict use_column
declare
  c_origin constant timestamptz := '2000-01-01 00:00+00';
  v_since  timestamptz;
  v_span   integer;
begin
  if step is null or step not between '1 minute' and '1 day' or since is null or until is null or since >= until
     or since < c_origin or until > c_origin + interval '1000 years' or (until - since) / 1000 > step then
    raise exception using errcode = 'PQ001', message = 'a timeline has at most 1000 steps of 1 minute to 1 day, and begins before it ends, in the years 2000 to 3000';
  end if;
  v_since := date_bin(step, since, c_origin);
  v_span := case when step < '1 hour' then 60 else 3600 end;
  return query
    with found as materialized (
      select date_bin(step, m.at, c_origin) as at, m.completed, m.failed, m.dead, m.cancelled, m.expired, m.lost,
             m.wait_buckets, m.wait_counts, m.run_buckets, m.run_counts
      from pgqueue.metric m
      where m.span_seconds = v_span and m.at >= v_since and m.at < until
        and (of_queue is null or m.queue = of_queue) and (of_task is null or m.task = of_task)
      union all
      select date_bin(step, t.at, c_origin), t.jobs * (t.outcome = 'completed')::int, t.jobs * (t.outcome = 'failed')::int,
             t.jobs * (t.outcome = 'dead')::int, t.jobs * (t.outcome = 'cancelled')::int, t.jobs * (t.outcome = 'expired')::int,
             t.jobs * (t.outcome = 'lost')::int, array[t.wait_bucket], array[t.jobs::bigint], array[t.run_bucket], array[t.jobs::bigint]
      from pgqueue.tally t
      where t.at >= v_since and t.at < until and (of_queue is null or t.queue = of_queue) and (of_task is null or t.task = of_task)
    ), counted as (
      select f.at, sum(f.completed)::bigint as completed, sum(f.failed)::bigint as failed, sum(f.dead)::bigint as dead,
             sum(f.cancelled)::bigint as cancelled, sum(f.expired)::bigint as expired, sum(f.lost)::bigint as lost
      from found f group by f.at
    ), bucket as (
      select f.at, true as waits, u.bucket, sum(u.n)::double precision as n
      from found f, unnest(f.wait_buckets, f.wait_counts) u (bucket, n) where u.bucket is not null group by 1, 3
      union all
      select f.at, false, u.bucket, sum(u.n)
      from found f, unnest(f.run_buckets, f.run_counts) u (bucket, n) where u.bucket is not null group by 1, 3
    ), ranked as (
      select b.at, b.waits, b.bucket, b.n, sum(b.n) over (partition by b.at, b.waits order by b.bucket) - b.n as below,
             sum(b.n) over (partition by b.at, b.waits) as total
      from bucket b
    ), reached as (
      -- As in stats().
      select r.at, r.waits,
             max(power(2.0::float8, (r.bucket + (0.50 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.50 * r.total and r.below + r.n >= 0.50 * r.total) as p50,
             max(power(2.0::float8, (r.bucket + (0.95 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.95 * r.total and r.below + r.n >= 0.95 * r.total) as p95,
             max(power(2.0::float8, (r.bucket + (0.99 * r.total - r.below) / r.n) / 4)) filter (where r.below < 0.99 * r.total and r.below + r.n >= 0.99 * r.total) as p99
      from ranked r group by r.at, r.waits
    ), sampled as (
      select date_bin(step, s.at, c_origin) as at, sum(s.pending + s.blocked)::double precision as waiting,
             sum(s.running)::double precision as running, max(s.oldest_waiting_seconds)::double precision as oldest
      from pgqueue.queue_sample s
      where s.at >= v_since and s.at < until and of_task is null and (of_queue is null or s.queue = of_queue)
      group by s.at, date_bin(step, s.at, c_origin)
    ), deep as (
      select s.at, avg(s.waiting) as waiting, avg(s.running) as running, max(s.oldest) as oldest from sampled s group by s.at
    )
    select g.at, coalesce(c.completed, 0), coalesce(c.failed, 0), coalesce(c.dead, 0), coalesce(c.cancelled, 0), coalesce(c.expired, 0),
           coalesce(c.lost, 0), w.p50, w.p95, w.p99, r.p50, r.p95, r.p99, d.waiting, d.running, d.oldest
    from generate_series(v_since, until, step) g (at)
    left join counted c on c.at = g.at
    left join reached w on w.at = g.at and w.waits
    left join reached r on r.at = g.at and not r.waits
    left join deep d on d.at = g.at
    where g.at < until
    order by g.at;
end
$$;
comment on function pgqueue.timeline is 'What ended in each of equal steps of time, percentiles of waits and runs, and depths.';
