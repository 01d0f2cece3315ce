-- task_stats, queue_stats: the last hour, from the metrics.
--
-- In one file, which comes after queue_status: views are replayed in the order of their files.

-- task_stats: what each task did in the last hour. Any other range: stats().
create or replace view pgqueue.task_stats as
select s.queue, s.task, s.completed, s.failed, s.dead, s.cancelled, s.expired, s.lost, s.snoozed, s.released, s.retried, s.per_second,
       s.wait_p50_seconds, s.wait_p95_seconds, s.wait_p99_seconds, s.run_p50_seconds, s.run_p95_seconds, s.run_p99_seconds, s.run_mean_seconds
from pgqueue.stats(now() - interval '1 hour', now()) s;
comment on view pgqueue.task_stats is 'The last hour by queue and task: what ended, how long it had waited and run.';
comment on column pgqueue.task_stats.queue is 'The queue.';
comment on column pgqueue.task_stats.task is 'The task.';
comment on column pgqueue.task_stats.completed is 'Jobs that completed.';
comment on column pgqueue.task_stats.failed is 'Attempts that failed and are retried.';
comment on column pgqueue.task_stats.dead is 'Jobs that died.';
comment on column pgqueue.task_stats.cancelled is 'Jobs that were cancelled.';
comment on column pgqueue.task_stats.expired is 'Jobs that did not start before expires_at.';
comment on column pgqueue.task_stats.lost is 'Attempts whose worker died, and that are retried.';
comment on column pgqueue.task_stats.snoozed is 'Attempts that wanted to run later.';
comment on column pgqueue.task_stats.released is 'Attempts that were handed back.';
comment on column pgqueue.task_stats.retried is 'Dead or cancelled jobs that somebody let run again.';
comment on column pgqueue.task_stats.per_second is 'Completed jobs a second.';
comment on column pgqueue.task_stats.wait_p50_seconds is 'Half of the attempts had waited at most so long since their job was claimable.';
comment on column pgqueue.task_stats.wait_p95_seconds is '95 % had waited at most so long.';
comment on column pgqueue.task_stats.wait_p99_seconds is '99 % had waited at most so long.';
comment on column pgqueue.task_stats.run_p50_seconds is 'Half of the attempts ran at most so long.';
comment on column pgqueue.task_stats.run_p95_seconds is '95 % ran at most so long.';
comment on column pgqueue.task_stats.run_p99_seconds is '99 % ran at most so long.';
comment on column pgqueue.task_stats.run_mean_seconds is 'How long attempts ran on average, from the histogram.';

-- queue_stats: what each queue did in the last hour, and how much work waits in it: the signal for autoscaling.
create or replace view pgqueue.queue_stats as
select q.queue, coalesce(s.completed, 0) as completed, coalesce(s.failed, 0) as failed, coalesce(s.dead, 0) as dead,
       coalesce(s.cancelled, 0) as cancelled, coalesce(s.expired, 0) as expired, coalesce(s.lost, 0) as lost,
       coalesce(s.snoozed, 0) as snoozed, coalesce(s.released, 0) as released, coalesce(s.retried, 0) as retried, s.enqueued,
       coalesce(s.per_second, 0) as per_second, s.wait_p50_seconds, s.wait_p95_seconds, s.wait_p99_seconds,
       s.run_p50_seconds, s.run_p95_seconds, s.run_p99_seconds, s.run_mean_seconds, q.pending, q.running, q.oldest_waiting_seconds,
       q.pending * coalesce(s.run_mean_seconds, ever.mean) as work_waiting_seconds
from pgqueue.queue_status q
left join pgqueue.stats(now() - interval '1 hour', now(), by => 'queue') s on s.queue = q.queue
left join (select m.queue, sum(u.n * power(2.0::float8, (u.bucket + 0.5) / 4)) / sum(u.n) as mean
           from pgqueue.metric m, unnest(m.run_buckets, m.run_counts) u (bucket, n) where m.span_seconds = 0 group by m.queue) ever
  on ever.queue = q.queue;
comment on view pgqueue.queue_stats is 'The last hour by queue, and how many seconds of work wait in it.';
comment on column pgqueue.queue_stats.queue is 'The queue.';
comment on column pgqueue.queue_stats.completed is 'Jobs that completed.';
comment on column pgqueue.queue_stats.failed is 'Attempts that failed and are retried.';
comment on column pgqueue.queue_stats.dead is 'Jobs that died.';
comment on column pgqueue.queue_stats.cancelled is 'Jobs that were cancelled.';
comment on column pgqueue.queue_stats.expired is 'Jobs that did not start before expires_at.';
comment on column pgqueue.queue_stats.lost is 'Attempts whose worker died, and that are retried.';
comment on column pgqueue.queue_stats.snoozed is 'Attempts that wanted to run later.';
comment on column pgqueue.queue_stats.released is 'Attempts that were handed back.';
comment on column pgqueue.queue_stats.retried is 'Dead or cancelled jobs that somebody let run again.';
comment on column pgqueue.queue_stats.enqueued is 'Jobs that came, estimated from what left and how the depth changed; null: no sample is an hour old.';
comment on column pgqueue.queue_stats.per_second is 'Completed jobs a second.';
comment on column pgqueue.queue_stats.wait_p50_seconds is 'Half of the attempts had waited at most so long since their job was claimable.';
comment on column pgqueue.queue_stats.wait_p95_seconds is '95 % had waited at most so long.';
comment on column pgqueue.queue_stats.wait_p99_seconds is '99 % had waited at most so long.';
comment on column pgqueue.queue_stats.run_p50_seconds is 'Half of the attempts ran at most so long.';
comment on column pgqueue.queue_stats.run_p95_seconds is '95 % ran at most so long.';
comment on column pgqueue.queue_stats.run_p99_seconds is '99 % ran at most so long.';
comment on column pgqueue.queue_stats.run_mean_seconds is 'How long attempts ran on average, from the histogram.';
comment on column pgqueue.queue_stats.pending is 'Jobs that could run now.';
comment on column pgqueue.queue_stats.running is 'Jobs that a worker holds.';
comment on column pgqueue.queue_stats.oldest_waiting_seconds is 'How long the first pending job has been claimable.';
comment on column pgqueue.queue_stats.work_waiting_seconds is 'Pending jobs times the average run: divide by the slots of your workers to get the time to drain.';
