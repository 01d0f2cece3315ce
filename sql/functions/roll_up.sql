-- roll_up: merges what complete() and its like have counted into the minute, the hour and the sum of each task, and once
-- a minute samples the depth of each queue. Returns how many rows of tally it took. One at a time; a second caller
-- returns at once.
--
-- Old minutes under a held snapshot are dead rows to walk over, so only the last ones are looked at, and all of them
-- once a minute: a transaction that completed a job and stayed open for long is counted then, in its own minute.
--
-- Moves nothing. Locks what it merges. Raises nothing. Called by every worker every few seconds.
create or replace function pgqueue.roll_up() returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set timezone = 'UTC' set jit = off
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_minute timestamptz := date_trunc('minute', v_now);
  v_sample boolean;
  v_taken  integer;
begin
  perform 1 from pgqueue.mutex m where m.name = 'metrics' for update skip locked;
  if not found then return 0; end if;
  v_sample := not exists (select 1 from pgqueue.queue_sample s where s.at >= v_minute);

  with taken as (
    delete from pgqueue.tally t where t.at >= case when v_sample then '-infinity' else v_minute - interval '2 minutes' end returning t.*
  ), spread as (
    select s.span_seconds, case s.span_seconds when 0 then '-infinity' when 60 then t.at else date_trunc('hour', t.at) end as at,
           t.queue, t.task, t.outcome, t.wait_bucket, t.run_bucket, sum(t.jobs) as jobs
    from taken t cross join (values (0), (60), (3600)) s (span_seconds) group by 1, 2, 3, 4, 5, 6, 7
  ), counted as (
    select s.span_seconds, s.at, s.queue, s.task, jsonb_object_agg(s.outcome, s.jobs) as n
    from (select s.span_seconds, s.at, s.queue, s.task, s.outcome, sum(s.jobs) as jobs from spread s group by 1, 2, 3, 4, 5) s
    group by 1, 2, 3, 4
  ), waits as (
    select s.span_seconds, s.at, s.queue, s.task, array_agg(s.wait_bucket) as buckets, array_agg(s.jobs) as counts
    from (select s.span_seconds, s.at, s.queue, s.task, s.wait_bucket, sum(s.jobs)::bigint as jobs from spread s
          where s.wait_bucket is not null group by 1, 2, 3, 4, 5) s group by 1, 2, 3, 4
  ), runs as (
    select s.span_seconds, s.at, s.queue, s.task, array_agg(s.run_bucket) as buckets, array_agg(s.jobs) as counts
    from (select s.span_seconds, s.at, s.queue, s.task, s.run_bucket, sum(s.jobs)::bigint as jobs from spread s
          where s.run_bucket is not null group by 1, 2, 3, 4, 5) s group by 1, 2, 3, 4
  ), merged as (
    insert into pgqueue.metric as m (at, span_seconds, queue, task, completed, failed, dead, cancelled, expired, lost, snoozed,
      released, retried, wait_buckets, wait_counts, run_buckets, run_counts)
    select c.at, c.span_seconds, c.queue, c.task, coalesce((c.n -> 'completed')::bigint, 0), coalesce((c.n -> 'failed')::bigint, 0),
      coalesce((c.n -> 'dead')::bigint, 0), coalesce((c.n -> 'cancelled')::bigint, 0), coalesce((c.n -> 'expired')::bigint, 0),
      coalesce((c.n -> 'lost')::bigint, 0), coalesce((c.n -> 'snoozed')::bigint, 0), coalesce((c.n -> 'released')::bigint, 0),
      coalesce((c.n -> 'retried')::bigint, 0),
      coalesce(w.buckets, '{}'), coalesce(w.counts, '{}'), coalesce(r.buckets, '{}'), coalesce(r.counts, '{}')
    from counted c
    left join waits w on (w.span_seconds, w.at, w.queue, w.task) = (c.span_seconds, c.at, c.queue, c.task)
    left join runs r on (r.span_seconds, r.at, r.queue, r.task) = (c.span_seconds, c.at, c.queue, c.task)
    on conflict (queue, task, span_seconds, at) do update set
      completed = m.completed + excluded.completed, failed = m.failed + excluded.failed, dead = m.dead + excluded.dead,
      cancelled = m.cancelled + excluded.cancelled, expired = m.expired + excluded.expired, lost = m.lost + excluded.lost,
      snoozed = m.snoozed + excluded.snoozed, released = m.released + excluded.released, retried = m.retried + excluded.retried,
      (wait_buckets, wait_counts) = (
        select coalesce(array_agg(s.bucket), '{}'), coalesce(array_agg(s.n), '{}') from (
          select u.bucket, sum(u.n)::bigint as n from (
            select * from unnest(m.wait_buckets, m.wait_counts) u (bucket, n) union all select * from unnest(excluded.wait_buckets, excluded.wait_counts)) u
          group by u.bucket order by u.bucket) s),
      (run_buckets, run_counts) = (
        select coalesce(array_agg(s.bucket), '{}'), coalesce(array_agg(s.n), '{}') from (
          select u.bucket, sum(u.n)::bigint as n from (
            select * from unnest(m.run_buckets, m.run_counts) u (bucket, n) union all select * from unnest(excluded.run_buckets, excluded.run_counts)) u
          group by u.bucket order by u.bucket) s)
  )
  select count(*) into v_taken from taken;

  if v_sample then
    insert into pgqueue.queue_sample (at, queue, pending, scheduled, blocked, running, dead, workers, oldest_waiting_seconds)
      select v_minute, s.queue, s.pending, s.scheduled, s.blocked, s.running, s.dead, s.workers, s.oldest_waiting_seconds
      from pgqueue.queue_status s;
    delete from pgqueue.queue_sample s
      where s.at < v_now - interval '2 days' and extract(minute from s.at) <> 0 or s.at < v_now - interval '30 days';
    delete from pgqueue.metric m where m.span_seconds = 60 and m.at < v_now - interval '2 days';
    delete from pgqueue.metric m where m.span_seconds = 3600 and m.at < v_now - interval '30 days';
    -- What nobody has run for so long is forgotten: names of tasks may come and go without end.
    delete from pgqueue.metric m where m.span_seconds = 0 and extract(minute from v_now) = 0
      and not exists (select 1 from pgqueue.metric h where h.queue = m.queue and h.task = m.task and h.span_seconds = 3600);
  end if;
  return v_taken;
end
$$;
comment on function pgqueue.roll_up is 'Merges what has been counted into the metrics of minutes, hours and for ever.';
