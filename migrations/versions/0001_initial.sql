-- pgqueue: every table, index and constraint, as they are today.
--
--   setting      one row: the defaults of every queue
--   queue        what an operator decided for one queue; a queue without a row has the defaults
--   lane         one row a priority of a queue: which lanes exist, and where their claims start (the hint)
--   job          one row a job, in exactly one leaf:
--     job_live     blocked, scheduled, pending, running        claims update in place, nothing moves
--     job_done     completed, cancelled                        a partition a day of prune_at, dropped whole
--     job_dead     dead                                        dead letters: few, looked at, retried
--   job_attempt  how each claim ended that did not simply complete its job
--   job_step     what a handler has finished and need not do again
--   job_log      what a handler said
--   key_hold     idempotency keys that stay taken after their job has finished
--   worker       one row a worker process; its heartbeat keeps all its jobs alive
--   mutex        locked by what only one session should do at a time
--
-- Call flow: enqueue → claim → complete | fail | snooze | release | cancel_claimed; beside it heartbeat, sweep,
-- promote, refresh_hints, ensure_partitions, prune. Only functions change rows: see functions/.

create schema if not exists pgqueue;
comment on schema pgqueue is 'A job queue. State changes only by its functions; read sql/README.md first.';

-- ---------------------------------------------------------------------------------------------- settings

create table pgqueue.setting (
  id                  boolean primary key default true check (id),
  max_attempts        smallint not null default 5  check (max_attempts between 1 and 32000),
  max_crashes         smallint not null default 5  check (max_crashes between 1 and 32000),
  retry               jsonb    not null default '{"type": "exponential", "base": 5, "cap": 3600, "jitter": "full"}',
  timeout_seconds     integer  check (timeout_seconds between 1 and 31536000),
  boost_seconds       integer  not null default 60 check (boost_seconds between 0 and 100000000),
  retain_completed    interval not null default '7 days'  check (retain_completed between '0' and '3650 days'),
  retain_dead         interval not null default '30 days' check (retain_dead between '0' and '3650 days'),
  payload_max_bytes   integer  not null default 262144 check (payload_max_bytes between 1024 and 134217728)
);
insert into pgqueue.setting default values;
comment on table  pgqueue.setting is 'One row: what holds for every queue that does not say otherwise. Change it with set_defaults().';
comment on column pgqueue.setting.id is 'Always true: there is one row.';
comment on column pgqueue.setting.max_attempts is 'A job dies after this many attempts.';
comment on column pgqueue.setting.max_crashes is 'A job dies after its worker died this many times while running it.';
comment on column pgqueue.setting.retry is 'Retry policy, as in retry_delay().';
comment on column pgqueue.setting.timeout_seconds is 'How long an attempt may run; null: as long as it wants.';
comment on column pgqueue.setting.boost_seconds is 'One point of priority is worth this head start.';
comment on column pgqueue.setting.retain_completed is 'How long completed and cancelled jobs are kept.';
comment on column pgqueue.setting.retain_dead is 'How long dead letters are kept.';
comment on column pgqueue.setting.payload_max_bytes is 'A payload may be this big, as PostgreSQL stores jsonb.';

create table pgqueue.queue (
  queue               text primary key check (queue ~ '^[A-Za-z0-9_.:-]{1,128}$'),
  id                  integer  not null generated always as identity unique,
  max_attempts        smallint check (max_attempts between 1 and 32000),
  max_crashes         smallint check (max_crashes between 1 and 32000),
  retry               jsonb,
  timeout_seconds     integer  check (timeout_seconds between 1 and 31536000),
  boost_seconds       integer  check (boost_seconds between 0 and 100000000),
  retain_completed    interval check (retain_completed between '0' and '3650 days'),
  retain_dead         interval check (retain_dead between '0' and '3650 days'),
  paused_at           timestamptz,
  paused_until        timestamptz,
  paused_reason       text,
  wake                regclass,
  created_at          timestamptz not null default now(),
  check (paused_at is not null or (paused_until is null and paused_reason is null))
);
comment on table  pgqueue.queue is 'Settings of one queue; null means the default in setting. Change it with set_queue(), pause(), resume().';
comment on column pgqueue.queue.queue is 'The name.';
comment on column pgqueue.queue.id is 'Names the sequence in wake.';
comment on column pgqueue.queue.max_attempts is 'A job dies after this many attempts.';
comment on column pgqueue.queue.max_crashes is 'A job dies after its worker died this many times while running it.';
comment on column pgqueue.queue.retry is 'Retry policy, as in retry_delay().';
comment on column pgqueue.queue.timeout_seconds is 'How long an attempt may run.';
comment on column pgqueue.queue.boost_seconds is 'One point of priority is worth this head start.';
comment on column pgqueue.queue.retain_completed is 'How long completed and cancelled jobs are kept.';
comment on column pgqueue.queue.retain_dead is 'How long dead letters are kept.';
comment on column pgqueue.queue.paused_at is 'Not null: nothing is claimed from this queue (until paused_until, if given).';
comment on column pgqueue.queue.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.queue.paused_reason is 'Why, in the words of whoever paused it.';
comment on column pgqueue.queue.wake is 'A sequence used as shared memory: milliseconds of the epoch before which enqueue() need not notify.';
comment on column pgqueue.queue.created_at is 'When the queue was first seen or configured.';

-- A lane is one priority of one queue; the row without a priority stands for the queue's scheduled jobs.
-- There is no unique constraint, on purpose: a long transaction that is the first to use a priority would make
-- every other enqueue with that priority wait for its end. Duplicates do no harm; refresh_hints() removes them.
create table pgqueue.lane (
  queue               text not null check (queue ~ '^[A-Za-z0-9_.:-]{1,128}$'),
  priority            smallint check (priority between -100 and 100),
  hint                timestamptz not null default '-infinity',
  floor               timestamptz not null default '-infinity',
  mark_at             timestamptz,
  mark_xid            xid8,
  cost_ms             real not null default 0,
  checked_at          timestamptz not null default '-infinity'
) with (fillfactor = 20);
create index lane_queue on pgqueue.lane (queue, priority);
comment on table  pgqueue.lane is 'One priority of one queue, and where its claims start searching; written by enqueue() and refresh_hints().';
comment on column pgqueue.lane.queue is 'The queue.';
comment on column pgqueue.lane.priority is 'The priority; null: the jobs that wait for their time (scheduled).';
comment on column pgqueue.lane.hint is 'Claims search from here on; -infinity while searching from the start is fast.';
comment on column pgqueue.lane.floor is 'No transaction is left that could still make a job appear below this.';
comment on column pgqueue.lane.mark_at is 'The next floor, once every transaction up to mark_xid has ended.';
comment on column pgqueue.lane.mark_xid is 'The first transaction id not yet given out at mark_at.';
comment on column pgqueue.lane.cost_ms is 'How long the last full search below the hint took.';
comment on column pgqueue.lane.checked_at is 'When that was.';

-- ------------------------------------------------------------------------------------------------- jobs

-- CACHE 1: a larger cache gains nothing and breaks the order of ids between sessions.
create sequence pgqueue.job_id_seq as bigint cache 1;
comment on sequence pgqueue.job_id_seq is 'Ids of jobs. They commit out of order: order by rank_at, not by id.';

create table pgqueue.job (
  id                  bigint      not null default nextval('pgqueue.job_id_seq'),
  rank_at             timestamptz not null,
  run_at              timestamptz not null,
  enqueued_at         timestamptz not null,
  started_at          timestamptz,
  finished_at         timestamptz,
  prune_at            timestamptz,
  expires_at          timestamptz,
  cancel_requested_at timestamptz,
  worker_id           bigint,
  token               integer     not null default 0,
  timeout_seconds     integer,
  retry_delay_seconds real,
  priority            smallint    not null default 0,
  attempt             smallint    not null default 0,
  max_attempts        smallint,
  crashes             smallint    not null default 0,
  status              text        not null,
  queue               text        not null,
  task                text        not null,
  key                 text,
  payload             jsonb       not null default '{}',
  result              jsonb,
  progress            jsonb,
  error_type          text,
  error               text,
  retry               jsonb,
  key_ttl             interval,
  retain_for          interval,
  tags                text[],
  meta                jsonb
) partition by list (status);
comment on table  pgqueue.job is 'Every job: one task to run with one payload.';
comment on column pgqueue.job.id is 'Unique over all leaves.';
comment on column pgqueue.job.rank_at is 'When the job became claimable; the order within its lane. While scheduled: run_at.';
comment on column pgqueue.job.run_at is 'Not claimable before this time.';
comment on column pgqueue.job.enqueued_at is 'When enqueue() was called, by the wall clock of the database.';
comment on column pgqueue.job.started_at is 'When the current or last attempt was claimed.';
comment on column pgqueue.job.finished_at is 'When the job was completed, cancelled or died.';
comment on column pgqueue.job.prune_at is 'When the finished job may be removed.';
comment on column pgqueue.job.expires_at is 'Never started after this time: cancelled instead.';
comment on column pgqueue.job.cancel_requested_at is 'Somebody asked the running job to stop; its worker learns it with its heartbeat.';
comment on column pgqueue.job.worker_id is 'The worker that holds, or last held, the lease.';
comment on column pgqueue.job.token is 'Lease token: the number of claims ever made of this job. With worker_id it fences every report.';
comment on column pgqueue.job.timeout_seconds is 'How long an attempt may run; null: as the queue says.';
comment on column pgqueue.job.retry_delay_seconds is 'The delay chosen before this attempt; decorrelated jitter grows from it.';
comment on column pgqueue.job.priority is '-100 to 100, higher first, each point a head start of the queue''s boost.';
comment on column pgqueue.job.attempt is 'Attempts charged so far, the running one included.';
comment on column pgqueue.job.max_attempts is 'The job dies after this many attempts; null: as the queue says.';
comment on column pgqueue.job.crashes is 'How often its worker died while running it.';
comment on column pgqueue.job.status is 'blocked, scheduled, pending, running, completed, cancelled or dead.';
comment on column pgqueue.job.queue is 'The queue.';
comment on column pgqueue.job.task is 'The name of the handler.';
comment on column pgqueue.job.key is 'Idempotency key: one live job for each (queue, key).';
comment on column pgqueue.job.payload is 'The arguments of the task, a JSON object.';
comment on column pgqueue.job.result is 'What the handler returned.';
comment on column pgqueue.job.progress is 'What the handler last said of its progress.';
comment on column pgqueue.job.error_type is 'Class of the last error.';
comment on column pgqueue.job.error is 'Message of the last error, or why the job was cancelled.';
comment on column pgqueue.job.retry is 'Retry policy, as in retry_delay(); null: as the queue says.';
comment on column pgqueue.job.key_ttl is 'The key stays taken for this long after the job has finished.';
comment on column pgqueue.job.retain_for is 'Kept for this long after it has finished; null: as the queue says.';
comment on column pgqueue.job.tags is 'Labels to find it by.';
comment on column pgqueue.job.meta is 'What tools attach: trace context, who enqueued it.';

-- One leaf for every live status, so that a claim is an update in place. Moving rows between a pending and a
-- running leaf made 29-31 % of concurrent claims fail with 40001.
create table pgqueue.job_live partition of pgqueue.job (
  primary key (id, queue),
  -- Only two: PostgreSQL reads every CHECK anew for each statement, 3 µs each; six made a single insert cost twice
  -- as much. The functions are the only door, and check the rest.
  constraint job_live_lease check ((status = 'running') = (worker_id is not null) and attempt >= 0),
  constraint job_live_times check (run_at > '1970-01-01 00:00+00' and run_at < '9999-12-31 00:00+00')
) for values in ('blocked', 'scheduled', 'pending', 'running')
  -- The defaults (a fifth of the table, once a minute) leave millions of dead rows at the head of the queue.
  with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
create unique index job_live_key       on pgqueue.job_live (queue, key) where key is not null;
create        index job_live_claim     on pgqueue.job_live (queue, priority, rank_at) where status = 'pending';
create        index job_live_scheduled on pgqueue.job_live (queue, run_at) where status = 'scheduled';
create        index job_live_worker    on pgqueue.job_live (worker_id) where status = 'running';
create        index job_live_cancel    on pgqueue.job_live (worker_id) where cancel_requested_at is not null;
create        index job_live_expires   on pgqueue.job_live (expires_at) where expires_at is not null and status <> 'running';
comment on table pgqueue.job_live is 'Jobs that are blocked, scheduled, pending or running.';

-- Partitioned by the day on which a row may go, not by the day on which it finished: the retention of a queue,
-- or of a single job, decides the partition, and everything is removed by dropping whole days.
create table pgqueue.job_done partition of pgqueue.job for values in ('completed', 'cancelled') partition by range (prune_at);
create table pgqueue.job_done_default partition of pgqueue.job_done default;
create index job_done_id on pgqueue.job_done (id);
create index job_done_default_prune on pgqueue.job_done_default (prune_at);
comment on table pgqueue.job_done is 'Completed and cancelled jobs, a partition for each day of prune_at (UTC).';
comment on table pgqueue.job_done_default is 'Safety net: a day without a partition never fails a completion. ensure_partitions() empties it.';

-- Dead letters have a leaf of their own, not days: they are few, outlive the completed, and are listed,
-- grouped, retried and purged as one set, which a single leaf serves with one index instead of forty.
create table pgqueue.job_dead partition of pgqueue.job (primary key (id, queue)) for values in ('dead');
create index job_dead_finished on pgqueue.job_dead (finished_at);
create index job_dead_queue    on pgqueue.job_dead (queue, finished_at);
create index job_dead_prune    on pgqueue.job_dead (prune_at);
comment on table pgqueue.job_dead is 'Dead letters.';

-- The last, successful attempt of a completed job is in the job's own row; so a job that succeeds at once
-- writes nothing here, and complete() costs nothing more for the history.
create table pgqueue.job_attempt (
  job_id              bigint      not null,
  started_at          timestamptz not null,
  finished_at         timestamptz not null,
  worker_id           bigint,
  token               integer     not null,
  delay_seconds       real,
  attempt             smallint    not null,
  queue               text        not null,
  task                text        not null,
  outcome             text        not null check (outcome in ('failed', 'lost', 'snoozed', 'released', 'cancelled')),
  error_type          text,
  error               text,
  traceback           text
) partition by range (finished_at);
create table pgqueue.job_attempt_default partition of pgqueue.job_attempt default;
create index job_attempt_job on pgqueue.job_attempt (job_id, token);
create index job_attempt_finished on pgqueue.job_attempt (finished_at);
comment on table  pgqueue.job_attempt is 'How each claim ended that did not complete its job, a partition a day (UTC). See the view attempt.';
comment on table  pgqueue.job_attempt_default is 'Safety net for days without a partition.';
comment on column pgqueue.job_attempt.job_id is 'The job.';
comment on column pgqueue.job_attempt.started_at is 'When it was claimed.';
comment on column pgqueue.job_attempt.finished_at is 'When the attempt ended.';
comment on column pgqueue.job_attempt.worker_id is 'Who ran it.';
comment on column pgqueue.job_attempt.token is 'The lease token of this claim.';
comment on column pgqueue.job_attempt.delay_seconds is 'How long the job then has to wait; null: it does not run again.';
comment on column pgqueue.job_attempt.attempt is 'Which attempt it was.';
comment on column pgqueue.job_attempt.queue is 'The queue.';
comment on column pgqueue.job_attempt.task is 'The task.';
comment on column pgqueue.job_attempt.outcome is 'failed, lost (its worker died), snoozed, released or cancelled.';
comment on column pgqueue.job_attempt.error_type is 'Class of the error.';
comment on column pgqueue.job_attempt.error is 'Message of the error.';
comment on column pgqueue.job_attempt.traceback is 'Where it happened.';

-- What a handler has finished and need not do again, and what it said. Both have days, as job_attempt, and go with them.
create table pgqueue.job_step (
  job_id              bigint      not null,
  saved_at            timestamptz not null,
  token               integer     not null,
  queue               text        not null,
  name                text        not null check (length(name) between 1 and 200),
  result              jsonb
) partition by range (saved_at);
create table pgqueue.job_step_default partition of pgqueue.job_step default;
create index job_step_job on pgqueue.job_step (job_id);
comment on table  pgqueue.job_step is 'Finished steps of jobs: a retry gets the stored result instead of running the step again. A partition a day (UTC).';
comment on table  pgqueue.job_step_default is 'Safety net for days without a partition.';
comment on column pgqueue.job_step.job_id is 'The job.';
comment on column pgqueue.job_step.saved_at is 'When it was finished.';
comment on column pgqueue.job_step.token is 'The lease token of the claim that finished it.';
comment on column pgqueue.job_step.queue is 'The queue.';
comment on column pgqueue.job_step.name is 'The name, unique within the job.';
comment on column pgqueue.job_step.result is 'What the step returned.';

create table pgqueue.job_log (
  job_id              bigint      not null,
  logged_at           timestamptz not null,
  token               integer     not null,
  queue               text        not null,
  level               text        not null check (level in ('debug', 'info', 'warning', 'error')),
  message             text        not null
) partition by range (logged_at);
create table pgqueue.job_log_default partition of pgqueue.job_log default;
create index job_log_job on pgqueue.job_log (job_id, logged_at);
comment on table  pgqueue.job_log is 'Lines that handlers wrote for people to read beside the job. A partition a day (UTC).';
comment on table  pgqueue.job_log_default is 'Safety net for days without a partition.';
comment on column pgqueue.job_log.job_id is 'The job.';
comment on column pgqueue.job_log.logged_at is 'When.';
comment on column pgqueue.job_log.token is 'The lease token of the claim that wrote it.';
comment on column pgqueue.job_log.queue is 'The queue.';
comment on column pgqueue.job_log.level is 'debug, info, warning or error.';
comment on column pgqueue.job_log.message is 'The line.';

create table pgqueue.key_hold (
  queue               text not null,
  key                 text not null,
  job_id              bigint not null,
  held_until          timestamptz not null,
  primary key (queue, key)
);
create index key_hold_until on pgqueue.key_hold (held_until);
comment on table  pgqueue.key_hold is 'Keys that stay taken after their job has finished (key_ttl).';
comment on column pgqueue.key_hold.queue is 'The queue.';
comment on column pgqueue.key_hold.key is 'The key.';
comment on column pgqueue.key_hold.job_id is 'The finished job.';
comment on column pgqueue.key_hold.held_until is 'When the key is free again.';

-- ---------------------------------------------------------------------------------------------- workers

create table pgqueue.worker (
  id                  bigint primary key generated always as identity,
  heartbeat_at        timestamptz not null,
  started_at          timestamptz not null,
  lost_at             timestamptz,
  lease_seconds       integer not null check (lease_seconds between 1 and 86400),
  name                text not null,
  queues              text[] not null,
  info                jsonb not null default '{}'
) with (fillfactor = 20);
comment on table  pgqueue.worker is 'One row a worker process. Beating this row keeps all its jobs alive: 174 bytes of WAL a beat, however many jobs.';
comment on column pgqueue.worker.id is 'Given by register_worker(), never used twice.';
comment on column pgqueue.worker.heartbeat_at is 'The last beat.';
comment on column pgqueue.worker.started_at is 'When it registered.';
comment on column pgqueue.worker.lost_at is 'When sweep() declared it lost; whatever it reports from then on is refused.';
comment on column pgqueue.worker.lease_seconds is 'It is lost after this long without a beat.';
comment on column pgqueue.worker.name is 'Host and process, for people.';
comment on column pgqueue.worker.queues is 'The queues it serves.';
comment on column pgqueue.worker.info is 'Version, tasks it knows, concurrency.';

-- --------------------------------------------------------------------------------------------- installed

-- Row locks, not advisory locks: those every user of the database can take, and hold.
create table pgqueue.mutex (
  name                text primary key
);
insert into pgqueue.mutex values ('sweep'), ('partitions');
comment on table  pgqueue.mutex is 'Locked by what only one session should do at a time.';
comment on column pgqueue.mutex.name is 'What that is.';

create table pgqueue.installed (
  id                  boolean primary key default true check (id),
  version             text not null,
  functions_sha256    text not null,
  installed_at        timestamptz not null default now()
);
comment on table  pgqueue.installed is 'One row: which pgqueue last installed its functions and views here.';
comment on column pgqueue.installed.id is 'Always true: there is one row.';
comment on column pgqueue.installed.version is 'Version of pgqueue.';
comment on column pgqueue.installed.functions_sha256 is 'Hash over functions/, views/ and roles.sql.';
comment on column pgqueue.installed.installed_at is 'When.';
