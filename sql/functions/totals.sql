-- totals: what has ended for ever (that is, as long as a task was seen within 30 days), by queue and task, as counters and
-- histograms for monitoring; what the last batches counted included. Buckets as in tally: b is 2^(b/4) to 2^((b+1)/4) seconds.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by operators and readers: `pgqueue metrics`, `pgqueue top`.
create or replace function pgqueue.totals()
returns table (queue text, task text, completed bigint, failed bigint, dead bigint, cancelled bigint, expired bigint, lost bigint,
               snoozed bigint, released bigint, retried bigint, wait_buckets smallint[], wait_counts bigint[], run_buckets smallint[], run_counts bigint[])
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
  return query
    with found as (
      select m.queue, m.task, m.completed, m.failed, m.dead, m.cancelled, m.expired, m.lost, m.snoozed, m.released, m.retried,
             m.wait_buckets, m.wait_counts, m.run_buckets, m.run_counts
      from pgqueue.metric m where m.span_seconds = 0
      union all
      select t.queue, t.task, t.jobs * (t.outcome = 'completed')::int, t.jobs * (t.outcome = 'failed')::int, t.jobs * (t.outcome = 'dead')::int,
             t.jobs * (t.outcome = 'cancelled')::int, t.jobs * (t.outcome = 'expired')::int, t.jobs * (t.outcome = 'lost')::int,
             t.jobs * (t.outcome = 'snoozed')::int, t.jobs * (t.outcome = 'released')::int, t.jobs * (t.outcome = 'retried')::int,
             array[t.wait_bucket], array[t.jobs], array[t.run_bucket], array[t.jobs]
      from pgqueue.tally t
    ), waits as (
      select b.queue, b.task, array_agg(b.bucket order by b.bucket) as buckets, array_agg(b.n order by b.bucket) as counts
      from (select f.queue, f.task, u.bucket, sum(u.n)::bigint as n from found f, unnest(f.wait_buckets, f.wait_counts) u (bucket, n)
            where u.bucket is not null group by 1, 2, 3) b group by 1, 2
    ), runs as (
      select b.queue, b.task, array_agg(b.bucket order by b.bucket) as buckets, array_agg(b.n order by b.bucket) as counts
      from (select f.queue, f.task, u.bucket, sum(u.n)::bigint as n from found f, unnest(f.run_buckets, f.run_counts) u (bucket, n)
            where u.bucket is not null group by 1, 2, 3) b group by 1, 2
    )
    select f.queue, f.task, sum(f.completed)::bigint, sum(f.failed)::bigint, sum(f.dead)::bigint, sum(f.cancelled)::bigint,
           sum(f.expired)::bigint, sum(f.lost)::bigint, sum(f.snoozed)::bigint, sum(f.released)::bigint, sum(f.retried)::bigint,
           coalesce(w.buckets, '{}'), coalesce(w.counts, '{}'), coalesce(r.buckets, '{}'), coalesce(r.counts, '{}')
    from found f left join waits w on w.queue = f.queue and w.task = f.task left join runs r on r.queue = f.queue and r.task = f.task
    group by f.queue, f.task, w.buckets, w.counts, r.buckets, r.counts order by f.queue, f.task;
end
$$;
comment on function pgqueue.totals is 'What has ended for ever, by queue and task: counters and histograms for monitoring.';
