-- They get a parameter more, at the end; two of a name would make every call ambiguous.
drop function if exists pgqueue.retry_many(text, text, text, text, text, text, timestamptz, timestamptz, interval, bigint, integer);
drop function if exists pgqueue.purge(text, text, text, text, text, text, timestamptz, timestamptz, bigint, integer);

alter table pgqueue.worker add column drain_requested_at timestamptz;
comment on column pgqueue.worker.drain_requested_at is 'An operator wants it to finish what it runs and to end.';
insert into pgqueue.mutex values ('metrics');

-- Appended to, never updated: workers that complete at the same moment meet no row of each other, and under a held
-- snapshot there is no chain of dead versions to walk. (A counter that every batch updates leaves one a batch.)
create table pgqueue.tally (
  at                  timestamptz not null,
  jobs                integer     not null,
  wait_bucket         smallint,
  run_bucket          smallint,
  outcome             text        not null,
  queue               text        not null,
  task                text        not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index tally_at on pgqueue.tally (at);
comment on table  pgqueue.tally is 'What has ended since the last roll_up(): so many jobs of one task with this outcome, wait and run.';
comment on column pgqueue.tally.at is 'The minute.';
comment on column pgqueue.tally.jobs is 'How many.';
comment on column pgqueue.tally.wait_bucket is 'From claimable to claimed: b means 2^(b/4) to 2^((b+1)/4) seconds.';
comment on column pgqueue.tally.run_bucket is 'From claimed to the end of the attempt, likewise; both only where a handler ran to its end.';
comment on column pgqueue.tally.outcome is 'A column of metric: completed, failed, dead, cancelled, expired, lost, snoozed, released, retried.';
comment on column pgqueue.tally.queue is 'The queue.';
comment on column pgqueue.tally.task is 'The task.';

create table pgqueue.metric (
  at                  timestamptz not null,
  span_seconds        integer     not null check (span_seconds in (0, 60, 3600)),
  queue               text        not null,
  task                text        not null,
  completed           bigint      not null,
  failed              bigint      not null,
  dead                bigint      not null,
  cancelled           bigint      not null,
  expired             bigint      not null,
  lost                bigint      not null,
  snoozed             bigint      not null,
  released            bigint      not null,
  retried             bigint      not null,
  wait_buckets        smallint[]  not null,
  wait_counts         bigint[]    not null,
  run_buckets         smallint[]  not null,
  run_counts          bigint[]    not null,
  primary key (queue, task, span_seconds, at)
) with (fillfactor = 50);
create index metric_at on pgqueue.metric (span_seconds, at);
comment on table  pgqueue.metric is 'What ended, by queue and task: a row a minute (kept two days), a row an hour (kept 30 days), one for ever. See stats().';
comment on column pgqueue.metric.at is 'When the minute or hour began; -infinity: for ever.';
comment on column pgqueue.metric.span_seconds is '60, 3600, or 0: for ever.';
comment on column pgqueue.metric.queue is 'The queue.';
comment on column pgqueue.metric.task is 'The task.';
comment on column pgqueue.metric.completed is 'Jobs that completed.';
comment on column pgqueue.metric.failed is 'Attempts that failed and are retried.';
comment on column pgqueue.metric.dead is 'Jobs that died.';
comment on column pgqueue.metric.cancelled is 'Jobs that were cancelled.';
comment on column pgqueue.metric.expired is 'Jobs that were cancelled because they did not start before expires_at.';
comment on column pgqueue.metric.lost is 'Attempts whose worker died, and that are retried.';
comment on column pgqueue.metric.snoozed is 'Attempts that wanted to run later.';
comment on column pgqueue.metric.released is 'Attempts that were handed back.';
comment on column pgqueue.metric.retried is 'Dead or cancelled jobs that somebody let run again.';
comment on column pgqueue.metric.wait_buckets is 'Histogram of waits: the buckets that are not empty.';
comment on column pgqueue.metric.wait_counts is 'How many are in each of wait_buckets.';
comment on column pgqueue.metric.run_buckets is 'Histogram of runs: the buckets that are not empty.';
comment on column pgqueue.metric.run_counts is 'How many are in each of run_buckets.';

create table pgqueue.queue_sample (
  at                  timestamptz not null,
  queue               text        not null,
  pending             bigint      not null,
  scheduled           bigint      not null,
  blocked             bigint      not null,
  running             bigint      not null,
  dead                bigint      not null,
  workers             integer     not null,
  oldest_waiting_seconds double precision,
  primary key (queue, at)
);
create index queue_sample_at on pgqueue.queue_sample (at);
comment on table  pgqueue.queue_sample is 'What queue_status said, once a minute (kept two days; one an hour 30 days).';
comment on column pgqueue.queue_sample.at is 'The minute.';
comment on column pgqueue.queue_sample.queue is 'The queue.';
comment on column pgqueue.queue_sample.pending is 'Jobs that could run.';
comment on column pgqueue.queue_sample.scheduled is 'Jobs that waited for their time.';
comment on column pgqueue.queue_sample.blocked is 'Jobs that waited for other jobs.';
comment on column pgqueue.queue_sample.running is 'Jobs that a worker held.';
comment on column pgqueue.queue_sample.dead is 'Dead letters.';
comment on column pgqueue.queue_sample.workers is 'Live workers that served it.';
comment on column pgqueue.queue_sample.oldest_waiting_seconds is 'How long the first pending job had been claimable.';

-- Written only while somebody wants it: see set_events().
create table pgqueue.event (
  at                  timestamptz not null,
  xid                 xid8        not null,
  job_id              bigint      not null,
  worker_id           bigint,
  token               integer     not null,
  attempt             smallint    not null,
  status              text        not null,
  queue               text        not null,
  task                text        not null,
  error_type          text
) partition by range (at);
create table pgqueue.event_default partition of pgqueue.event default;
create index event_xid on pgqueue.event (xid);
comment on table  pgqueue.event is 'Changes of status, off by default, a partition a day (UTC), kept until the next day is over. See events().';
comment on table  pgqueue.event_default is 'Safety net for days without a partition.';
comment on column pgqueue.event.at is 'When.';
comment on column pgqueue.event.xid is 'The transaction that did it: what a cursor of events() goes by.';
comment on column pgqueue.event.job_id is 'The job.';
comment on column pgqueue.event.worker_id is 'The worker that holds, or last held, the lease.';
comment on column pgqueue.event.token is 'The number of claims of this job so far.';
comment on column pgqueue.event.attempt is 'Attempts charged so far.';
comment on column pgqueue.event.status is 'The new status.';
comment on column pgqueue.event.queue is 'The queue.';
comment on column pgqueue.event.task is 'The task.';
comment on column pgqueue.event.error_type is 'Class of the last error.';
