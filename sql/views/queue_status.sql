-- queue_status: how each queue is doing. Counts live jobs, up to a bound, and dead letters, never the history.
create or replace view pgqueue.queue_status as
with name as (
  select q.queue from pgqueue.queue q union select l.queue from pgqueue.lane l
), counted as materialized (
  -- Counted to 100,000: ten million would take seconds. What is above is estimated from the statistics of the index.
  select n.queue,
         pgqueue.depth(n.queue, 'pending') as pending,
         pgqueue.depth(n.queue, 'scheduled') as scheduled,
         (select count(*) from (select 1 from pgqueue.job_live j where j.queue = n.queue and j.waits_for = 'group' limit 100001) c)
         + (select count(*) from (select 1 from pgqueue.job_live j where j.queue = n.queue and j.waits_for = 'parents' limit 100001) c) as parked,
         (select min(first.rank_at) from (select distinct l.priority from pgqueue.lane l where l.queue = n.queue) l
            cross join lateral (select j.rank_at from pgqueue.job_live j where j.queue = n.queue and j.priority = l.priority
                                and j.status = 'pending' order by j.rank_at limit 1) first) as oldest_pending_at,
         (select min(j.run_at) from pgqueue.job_live j where j.queue = n.queue and j.status = 'scheduled') as next_run_at
  from name n
), live as (
  select c.queue, c.oldest_pending_at, c.next_run_at, c.parked,
         case when c.pending <= 100000 then c.pending
              else greatest(c.pending, ((select k.reltuples from pg_class k where k.oid = 'pgqueue.job_live_claim'::regclass) * c.pending / sum(c.pending) over ()))::bigint end as pending,
         case when c.scheduled <= 100000 then c.scheduled
              else greatest(c.scheduled, ((select k.reltuples from pg_class k where k.oid = 'pgqueue.job_live_scheduled'::regclass) * c.scheduled / sum(c.scheduled) over ()))::bigint end as scheduled
  from counted c
), held as (
  select j.queue, count(*) as running from pgqueue.job_live j where j.status = 'running' group by j.queue
), stopped as (
  -- Of tasks that are paused, or whose circuit is open.
  select j.queue, count(*) as stopped from (select j.queue from pgqueue.job_live j where j.waits_for = 'task' limit 100001) j group by j.queue
), dead as (
  select j.queue, count(*) as dead from pgqueue.job_dead j group by j.queue
), served as (
  select u.queue, count(*) as workers
  from pgqueue.worker w, unnest(w.queues) u (queue)
  where w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds)
  group by u.queue
)
select n.queue,
       coalesce(l.pending, 0)   as pending,
       coalesce(l.scheduled, 0) as scheduled,
       coalesce(l.parked, 0) + coalesce(t.stopped, 0) as blocked,
       coalesce(h.running, 0)   as running,
       coalesce(d.dead, 0)      as dead,
       round(extract(epoch from clock_timestamp() - l.oldest_pending_at), 3) as oldest_waiting_seconds,
       l.next_run_at,
       coalesce(w.workers, 0)   as workers,
       q.paused_at is not null and coalesce(q.paused_until > clock_timestamp(), true) as paused,
       q.paused_until, q.paused_reason,
       coalesce(q.max_attempts, s.max_attempts)         as max_attempts,
       coalesce(q.max_crashes, s.max_crashes)           as max_crashes,
       coalesce(q.timeout_seconds, s.timeout_seconds)   as timeout_seconds,
       coalesce(q.retry, s.retry)                       as retry,
       coalesce(q.boost_seconds, s.boost_seconds)       as boost_seconds,
       coalesce(q.retain_completed, s.retain_completed) as retain_completed,
       coalesce(q.retain_dead, s.retain_dead)           as retain_dead,
       q.max_running, q.rate, q.rate_seconds, q.rate_burst, q.fair, q.group_max_running, q.group_on_retry,
       q.group_rate, q.group_rate_seconds, q.group_rate_burst, q.max_depth, q.shed_below,
       nullif(greatest(g.not_before, g.full_at - make_interval(secs =>
         (coalesce(q.rate_burst, greatest(1, floor(q.rate * 0.1 / q.rate_seconds)::integer)) - 1) * q.rate_seconds / q.rate)),
         '-infinity') as next_eligible_at
from name n cross join pgqueue.setting s
left join pgqueue.queue q on q.queue = n.queue
left join live l on l.queue = n.queue
left join held h on h.queue = n.queue
left join stopped t on t.queue = n.queue
left join pgqueue.queue_gate g on g.queue = n.queue
left join dead d on d.queue = n.queue
left join served w on w.queue = n.queue
order by n.queue;
comment on view pgqueue.queue_status is 'One row a queue: depth by status, oldest waiting, workers, pause, settings in force.';
comment on column pgqueue.queue_status.queue is 'The queue.';
comment on column pgqueue.queue_status.pending is 'Jobs that could run now; exact up to 100,000, above that an estimate.';
comment on column pgqueue.queue_status.scheduled is 'Jobs that wait for their time: delayed ones and retries; above 100,000 an estimate.';
comment on column pgqueue.queue_status.blocked is 'Jobs that wait for their parents, for a slot or the turn of their group, or for a task that is paused; exact up to 100,000.';
comment on column pgqueue.queue_status.running is 'Jobs that a worker holds.';
comment on column pgqueue.queue_status.dead is 'Dead letters.';
comment on column pgqueue.queue_status.oldest_waiting_seconds is 'How long the first pending job has been claimable.';
comment on column pgqueue.queue_status.next_run_at is 'When the next scheduled job is due.';
comment on column pgqueue.queue_status.workers is 'Live workers that serve the queue.';
comment on column pgqueue.queue_status.paused is 'Nothing is claimed.';
comment on column pgqueue.queue_status.paused_until is 'When the pause ends by itself.';
comment on column pgqueue.queue_status.paused_reason is 'Why it is paused.';
comment on column pgqueue.queue_status.max_attempts is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.max_crashes is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.timeout_seconds is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.retry is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.boost_seconds is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.retain_completed is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.retain_dead is 'In force: the queue''s, or the default.';
comment on column pgqueue.queue_status.max_running is 'At most so many of its jobs run at the same time.';
comment on column pgqueue.queue_status.rate is 'At most so many start within rate_seconds.';
comment on column pgqueue.queue_status.rate_seconds is 'The interval of rate.';
comment on column pgqueue.queue_status.rate_burst is 'So many may start at once.';
comment on column pgqueue.queue_status.fair is 'Groups take turns.';
comment on column pgqueue.queue_status.group_max_running is 'At most so many jobs of one group run at the same time.';
comment on column pgqueue.queue_status.group_on_retry is 'A job that waits for its retry holds its group, or steps aside.';
comment on column pgqueue.queue_status.group_rate is 'At most so many jobs of one group start within group_rate_seconds.';
comment on column pgqueue.queue_status.group_rate_seconds is 'The interval of group_rate.';
comment on column pgqueue.queue_status.group_rate_burst is 'So many of one group may start at once.';
comment on column pgqueue.queue_status.max_depth is 'enqueue() refuses, or sheds, when so many jobs wait.';
comment on column pgqueue.queue_status.shed_below is 'When it is full, jobs below this priority are cancelled at once.';
comment on column pgqueue.queue_status.next_eligible_at is 'When the queue''s rate, or a handler that was rate limited, lets the next job start; in the past: now.';
