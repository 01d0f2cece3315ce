-- pgqueue: every table, index and constraint, as they are today.
--
--   setting      one row: the defaults of every queue
--   queue        what an operator decided for one queue; a queue without a row has the defaults
--   queue_gone   queues that were deleted, until nobody is left who has seen them
--   queue_gate   one row a queue with limits: its lock, its rate, its depth
--   queue_group  one row a group that claims have met in a queue with limits a group
--   task         what an operator decided for one task, and its circuit breaker
--   task_outcome how the last attempts of tasks with a breaker ended
--   lane         one row a priority of a queue: which lanes exist, and where their claims start (the hint)
--   job          one row a job, in exactly one leaf:
--     job_live     blocked, scheduled, pending, running        claims update in place, nothing moves
--     job_done     completed, cancelled                        a partition a day of prune_at, dropped whole
--     job_dead     dead                                        dead letters: few, looked at, retried
--   job_attempt  how each claim ended that did not simply complete its job
--   job_step     what a handler has finished and need not do again
--   job_log      what a handler said
--   key_hold     idempotency keys that stay taken after their job has finished
--   recurring_job  one row a definition: what is enqueued again and again, and when it is due next
--   recurring_run  one row for each due time that has been dealt with; outlives the job
--   flow         jobs linked by "runs after": how many they are, how many have ended; its row is their lock
--   flow_node    one row a job of a flow: how many parents it waits for, how it ended
--   flow_edge    which job runs after which
--   worker       one row a worker process; its heartbeat keeps all its jobs alive
--   tally        what has just ended, counted: appended by complete() and its like, a few rows a batch
--   metric       the same by minute, by hour and for ever; roll_up() merges the tallies into it
--   queue_sample how deep each queue was, once a minute
--   event        changes of status, for those who want them; off by default
--   audit        who did what by the web page
--   mutex        locked by what only one session should do at a time
--
-- Call flow: enqueue → claim → complete | fail | snooze | release | cancel_claimed; beside it heartbeat, sweep,
-- promote, refresh_hints, ensure_partitions, prune; before it, for recurring jobs, due_recurring → tick. Only functions change rows: see functions/.

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
  max_running         integer  check (max_running between 1 and 100000),
  rate                integer  check (rate between 1 and 1000000000),
  rate_seconds        real     check (rate_seconds between 0.001 and 31536000),
  rate_burst          integer  check (rate_burst between 1 and 1000000),
  fair                boolean  not null default false,
  group_max_running   integer  check (group_max_running between 1 and 100000),
  group_rate          integer  check (group_rate between 1 and 1000000000),
  group_rate_seconds  real     check (group_rate_seconds between 0.001 and 31536000),
  group_rate_burst    integer  check (group_rate_burst between 1 and 1000000),
  group_on_retry      text     not null default 'hold' check (group_on_retry in ('hold', 'step_aside')),
  max_depth           integer  check (max_depth between 1 and 1000000000),
  shed_below          smallint check (shed_below between -100 and 100),
  gated               boolean  not null default false,
  grouped             boolean  not null default false,
  came                regclass,
  went                regclass,
  looked_at           timestamptz not null default now(),
  unused_since        timestamptz,
  check (paused_at is not null or (paused_until is null and paused_reason is null)),
  constraint queue_rate_whole check ((rate is null) = (rate_seconds is null) and (rate is not null or rate_burst is null)),
  constraint queue_group_rate_whole check ((group_rate is null) = (group_rate_seconds is null) and (group_rate is not null or group_rate_burst is null)),
  constraint queue_shed_needs_depth check (max_depth is not null or shed_below is null)
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
comment on column pgqueue.queue.max_running is 'At most so many jobs of the queue run at the same time.';
comment on column pgqueue.queue.rate is 'At most so many jobs of the queue start within rate_seconds (and rate_burst at once).';
comment on column pgqueue.queue.rate_seconds is 'The interval of rate.';
comment on column pgqueue.queue.rate_burst is 'So many may start at once; null: what a tenth of a second brings, at least one.';
comment on column pgqueue.queue.fair is 'Groups take turns: after each start of a job the group goes to the end of the line.';
comment on column pgqueue.queue.group_max_running is 'At most so many jobs of one group run at the same time; 1: one after the other, in order.';
comment on column pgqueue.queue.group_rate is 'At most so many jobs of one group start within group_rate_seconds.';
comment on column pgqueue.queue.group_rate_seconds is 'The interval of group_rate.';
comment on column pgqueue.queue.group_rate_burst is 'So many of one group may start at once; null: as rate_burst.';
comment on column pgqueue.queue.group_on_retry is 'A job that waits for its retry holds its group''s slot, or steps aside for the next.';
comment on column pgqueue.queue.max_depth is 'enqueue() refuses, or sheds, when so many jobs wait.';
comment on column pgqueue.queue.shed_below is 'When the queue is full, jobs below this priority are cancelled at once and the others accepted; null: all are refused.';
comment on column pgqueue.queue.gated is 'Derived: claims must look at the limits of the queue. Written by set_queue() and its siblings.';
comment on column pgqueue.queue.grouped is 'Derived: claims must look at groups.';
comment on column pgqueue.queue.came is 'A sequence used as a counter: jobs enqueued since queue_gate.depth was counted. It counts those that roll back too; the next count puts that right.';
comment on column pgqueue.queue.went is 'The same for jobs claimed since then.';
comment on column pgqueue.queue.looked_at is 'When sweep() last looked whether anybody uses the queue.';
comment on column pgqueue.queue.unused_since is 'Since when sweep() has found neither job nor worker nor setting; after 30 days it forgets the queue.';

create table pgqueue.queue_gone (
  id                  bigint primary key generated always as identity,
  gone_at             timestamptz not null,
  seen_xid            xid8,
  queue_id            integer,
  queue               text not null
);
comment on table  pgqueue.queue_gone is 'Queues that were deleted a short time ago: transactions may be open that believe they exist. See drop_queue().';
comment on column pgqueue.queue_gone.id is 'Given by PostgreSQL.';
comment on column pgqueue.queue_gone.gone_at is 'When it was deleted.';
comment on column pgqueue.queue_gone.seen_xid is 'No transaction before this one is open any more: then nobody is left that has seen the queue.';
comment on column pgqueue.queue_gone.queue_id is 'Names its sequences, which go last.';
comment on column pgqueue.queue_gone.queue is 'The queue.';

-- Apart from queue, because these change with every claim. Only queues with limits have a row.
create table pgqueue.queue_gate (
  queue               text primary key,
  full_at             timestamptz not null default '-infinity',
  not_before          timestamptz not null default '-infinity',
  depth               bigint not null default 0,
  depth_counted_at    timestamptz not null default '-infinity',
  depth_cost_ms       real not null default 0,
  swept_group         text not null default ''
) with (fillfactor = 20);
comment on table  pgqueue.queue_gate is 'Locked by claims of a queue with max_running or a rate, one at a time; what its limits need to remember.';
comment on column pgqueue.queue_gate.queue is 'The queue.';
comment on column pgqueue.queue_gate.full_at is 'GCRA: when the token bucket is full again; each start moves it on by rate_seconds / rate.';
comment on column pgqueue.queue_gate.not_before is 'A handler said RateLimited: nothing starts before this time.';
comment on column pgqueue.queue_gate.depth is 'How many jobs waited when they were last counted.';
comment on column pgqueue.queue_gate.depth_counted_at is 'When that was.';
comment on column pgqueue.queue_gate.depth_cost_ms is 'How long the count took: it is repeated so that it takes at most a fiftieth of the time.';
comment on column pgqueue.queue_gate.swept_group is 'How far the last sweep got in looking after groups.';

create table pgqueue.queue_group (
  queue               text not null,
  group_key           text not null,
  full_at             timestamptz not null default '-infinity',
  not_before          timestamptz not null default '-infinity',
  paused_at           timestamptz,
  paused_until        timestamptz,
  paused_reason       text,
  primary key (queue, group_key)
) with (fillfactor = 70);
create index queue_group_stopped on pgqueue.queue_group (queue) where paused_at is not null or not_before > '-infinity';
comment on table  pgqueue.queue_group is 'A group that claims have met, in a queue with limits a group. Its row is its lock; sweep() removes it when the group has no live job.';
comment on column pgqueue.queue_group.queue is 'The queue.';
comment on column pgqueue.queue_group.group_key is 'The group.';
comment on column pgqueue.queue_group.full_at is 'As in queue_gate, for group_rate.';
comment on column pgqueue.queue_group.not_before is 'A handler said RateLimited: nothing of the group starts before this time.';
comment on column pgqueue.queue_group.paused_at is 'Not null: nothing of the group is claimed (until paused_until, if given).';
comment on column pgqueue.queue_group.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.queue_group.paused_reason is 'Why, in the words of whoever paused it.';

create table pgqueue.task (
  task                text primary key check (task ~ '^[A-Za-z0-9_.:-]{1,128}$'),
  paused_at           timestamptz,
  paused_until        timestamptz,
  paused_reason       text,
  breaker_rate        real     check (breaker_rate > 0 and breaker_rate <= 1),
  breaker_min         integer  check (breaker_min between 1 and 1000000),
  breaker_window      real     check (breaker_window between 1 and 86400),
  breaker_open        real     check (breaker_open between 0.1 and 86400),
  circuit             text     not null default 'closed' check (circuit in ('closed', 'open', 'half_open')),
  circuit_changed_at  timestamptz,
  circuit_probe_at    timestamptz,
  circuit_probe       bigint,
  circuit_opened      integer  not null default 0,
  circuit_reason      text,
  alarmed_at          timestamptz,
  check (paused_at is not null or (paused_until is null and paused_reason is null)),
  constraint task_breaker_whole check ((breaker_rate is null) = (breaker_min is null)
    and (breaker_rate is null) = (breaker_window is null) and (breaker_rate is null) = (breaker_open is null))
) with (fillfactor = 50);
create index task_held    on pgqueue.task (task) where paused_at is not null or circuit <> 'closed';
create index task_watched on pgqueue.task (task) where breaker_rate is not null;
comment on table  pgqueue.task is 'What was decided for one task: paused, circuit breaker. A task without a row has neither. Change it with set_task(), pause_task(), resume_task(), force_circuit().';
comment on column pgqueue.task.task is 'The name.';
comment on column pgqueue.task.paused_at is 'Not null: no job of the task is claimed (until paused_until, if given).';
comment on column pgqueue.task.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.task.paused_reason is 'Why, in the words of whoever paused it.';
comment on column pgqueue.task.breaker_rate is 'The circuit opens when this share of the attempts within breaker_window failed …';
comment on column pgqueue.task.breaker_min is '… and there were at least so many of them.';
comment on column pgqueue.task.breaker_window is 'Seconds that are looked back upon.';
comment on column pgqueue.task.breaker_open is 'Seconds before an open circuit is probed; twice as long after each probe that fails, at most an hour.';
comment on column pgqueue.task.circuit is 'closed: jobs run; open: none is claimed; half_open: one is, and its end decides.';
comment on column pgqueue.task.circuit_changed_at is 'Since when.';
comment on column pgqueue.task.circuit_probe_at is 'When an open circuit lets a probe through; null: never by itself, an operator has forced it.';
comment on column pgqueue.task.circuit_probe is 'The job that is the probe of a half-open circuit.';
comment on column pgqueue.task.circuit_opened is 'How often it opened since it last closed.';
comment on column pgqueue.task.circuit_reason is 'Why it opened.';
comment on column pgqueue.task.alarmed_at is 'When sweep() last found that the task fails everywhere; null: it does not.';

create table pgqueue.task_outcome (
  task                text not null,
  worker_id           bigint not null,
  counted_at          timestamptz not null,
  completed           integer not null default 0,
  failed              integer not null default 0,
  primary key (task, counted_at, worker_id)
) with (fillfactor = 50);
comment on table  pgqueue.task_outcome is 'How the last attempts of tasks with a breaker ended, a row for each worker and tenth of the window, so that no two workers wait for each other.';
comment on column pgqueue.task_outcome.task is 'The task.';
comment on column pgqueue.task_outcome.worker_id is 'Who ran them.';
comment on column pgqueue.task_outcome.counted_at is 'The tenth of the window.';
comment on column pgqueue.task_outcome.completed is 'Attempts that completed.';
comment on column pgqueue.task_outcome.failed is 'Attempts that failed.';

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
  meta                jsonb,
  group_key           text,
  waits_for           text,
  holds_slot          boolean     not null default false,
  flow_id             bigint
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
comment on column pgqueue.job.group_key is 'The group, tenant for example, that limits and turns of the queue are about.';
comment on column pgqueue.job.waits_for is 'What a blocked job waits for: parents (of its flow), group (a slot or its turn), task (paused, or its circuit is open).';
comment on column pgqueue.job.holds_slot is 'Counts against max_running of its queue and of its group: it runs, is the next of its group, or waits for a retry that holds the group.';
comment on column pgqueue.job.flow_id is 'The flow that it is a job of; null: of none, and its end is nobody else''s business.';

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
-- Only jobs with limits are in these; all others pay nothing for them.
create        index job_live_slot      on pgqueue.job_live (queue, group_key) where holds_slot;
create        index job_live_line      on pgqueue.job_live (queue, group_key, priority, rank_at) where group_key is not null and status = 'pending';
create        index job_live_parked    on pgqueue.job_live (queue, group_key, priority, rank_at) where waits_for = 'group';
create        index job_live_held      on pgqueue.job_live (task, queue, rank_at) where waits_for = 'task';
create        index job_live_child     on pgqueue.job_live (queue) where waits_for = 'parents';
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

-- -------------------------------------------------------------------------------------- recurring jobs

-- What cron expressions and zones mean is computed by the ticker (pgqueue/cron.py); this table says what it computed
-- last, and tick() accepts it only against the same version and the clock of this database.
create table pgqueue.recurring_job (
  name                text primary key check (name ~ '^[A-Za-z0-9_.:-]{1,128}$'),
  queue               text not null,
  task                text not null,
  payload             jsonb not null,
  cron                text check (length(cron) between 1 and 256),
  every               interval check (every between '1 second' and '3650 days'),
  timezone            text not null check (length(timezone) between 1 and 64),
  starts_at           timestamptz check (starts_at between '1970-01-02 00:00+00' and '9999-12-30 00:00+00'),
  ends_at             timestamptz check (ends_at between '1970-01-02 00:00+00' and '9999-12-30 00:00+00'),
  jitter              interval not null check (jitter between '0' and '1 day'),
  catch_up            text not null check (catch_up in ('skip', 'latest', 'all')),
  catch_up_max        integer not null check (catch_up_max between 1 and 1000),
  overlap             text not null check (overlap in ('allow', 'skip', 'replace')),
  priority            smallint not null,
  max_attempts        smallint,
  retry               jsonb,
  timeout_seconds     integer,
  tags                text[],
  meta                jsonb,
  expires_in          interval check (expires_in between '1 second' and '3650 days'),
  retain_for          interval,
  owner               text not null check (owner in ('code', 'operator')),
  source              text check (length(source) between 1 and 200),
  declared            jsonb,
  edited_at           timestamptz,
  active              boolean not null default true,
  paused_at           timestamptz,
  paused_until        timestamptz,
  paused_reason       text,
  version             integer not null default 1,
  planned             boolean not null default false,
  planned_from        timestamptz not null default clock_timestamp(),
  next_run_at         timestamptz,
  last_due_at         timestamptz,
  last_job_id         bigint,
  missed_at           timestamptz,
  broken_at           timestamptz,
  broken_reason       text,
  recheck_at          timestamptz,
  created_at          timestamptz not null default clock_timestamp(),
  changed_at          timestamptz not null default clock_timestamp(),
  group_key           text,
  check (num_nonnulls(cron, every) = 1),
  check ((owner = 'code') = (source is not null) and (owner = 'code') = (declared is not null)),
  check (paused_at is not null or (paused_until is null and paused_reason is null)),
  check (num_nonnulls(broken_at, broken_reason, recheck_at) in (0, 3)),
  check (planned or next_run_at is null)
) with (fillfactor = 50);
comment on table  pgqueue.recurring_job is 'Definitions of recurring jobs. Change them with set_recurring() and its siblings; tick() makes jobs of them.';
comment on column pgqueue.recurring_job.name is 'The name.';
comment on column pgqueue.recurring_job.queue is 'The queue of its jobs.';
comment on column pgqueue.recurring_job.task is 'The task that its jobs run.';
comment on column pgqueue.recurring_job.payload is 'The arguments of the task.';
comment on column pgqueue.recurring_job.cron is 'When, as an expression of 5 or 6 fields (seconds first) or an alias, by the wall clock of timezone.';
comment on column pgqueue.recurring_job.every is 'When, as a distance: counted from starts_at, else from 1970-01-01 00:00 UTC.';
comment on column pgqueue.recurring_job.timezone is 'The zone whose wall clock cron follows.';
comment on column pgqueue.recurring_job.starts_at is 'Nothing is due before.';
comment on column pgqueue.recurring_job.ends_at is 'Nothing is due after.';
comment on column pgqueue.recurring_job.jitter is 'Each job starts up to this much after it is due.';
comment on column pgqueue.recurring_job.catch_up is 'What becomes of due times that passed while no ticker ran: skip (more than a minute late: nothing), latest (one job for the last one) or all.';
comment on column pgqueue.recurring_job.catch_up_max is 'With catch_up all: so many at most, the latest.';
comment on column pgqueue.recurring_job.overlap is 'While the last job is live: allow another, skip this due time, or replace the last one (cancelled; asked to stop if it runs).';
comment on column pgqueue.recurring_job.priority is 'Of its jobs.';
comment on column pgqueue.recurring_job.max_attempts is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_job.retry is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_job.timeout_seconds is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_job.tags is 'Of its jobs.';
comment on column pgqueue.recurring_job.meta is 'Of its jobs; the name and the due time are added to it.';
comment on column pgqueue.recurring_job.expires_in is 'Its jobs never start later than this after their due time.';
comment on column pgqueue.recurring_job.retain_for is 'Its jobs are kept for this long after they have finished; null: as the queue says.';
comment on column pgqueue.recurring_job.owner is 'code: declared by an app, which changes and retires it. operator: made at run time.';
comment on column pgqueue.recurring_job.source is 'Which app declares it.';
comment on column pgqueue.recurring_job.declared is 'What that app last declared. An edit holds until the declaration itself changes.';
comment on column pgqueue.recurring_job.edited_at is 'When an operator changed what an app declared.';
comment on column pgqueue.recurring_job.active is 'False: retired, its app declares it no longer.';
comment on column pgqueue.recurring_job.paused_at is 'Not null: nothing is due (until paused_until, if given). What would have been due meanwhile is not made up for.';
comment on column pgqueue.recurring_job.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.recurring_job.paused_reason is 'Why, in the words of whoever paused it.';
comment on column pgqueue.recurring_job.version is 'Counted up by whatever changes what is due next: what was computed for an older one is refused.';
comment on column pgqueue.recurring_job.planned is 'False: a ticker has yet to compute next_run_at.';
comment on column pgqueue.recurring_job.planned_from is 'Due times are counted from after this moment: when the schedule was set, or a pause ended.';
comment on column pgqueue.recurring_job.next_run_at is 'The next due time, before jitter. Null although planned: there is none any more.';
comment on column pgqueue.recurring_job.last_due_at is 'The last due time that was dealt with.';
comment on column pgqueue.recurring_job.last_job_id is 'The last job.';
comment on column pgqueue.recurring_job.missed_at is 'The last due time that catch_up left out.';
comment on column pgqueue.recurring_job.broken_at is 'Since when no due time can be computed or no job enqueued: an unknown zone, a task that is gone.';
comment on column pgqueue.recurring_job.broken_reason is 'Why.';
comment on column pgqueue.recurring_job.recheck_at is 'When a ticker tries again.';
comment on column pgqueue.recurring_job.created_at is 'When it was first declared or made.';
comment on column pgqueue.recurring_job.changed_at is 'When the definition was last changed.';
comment on column pgqueue.recurring_job.group_key is 'Of its jobs: the group that limits and turns of the queue are about.';

-- The primary key is what makes a job for one due time of one definition exist once, whatever else goes wrong. Without
-- a foreign key: it stays when the definition is removed, so that the same name made anew repeats nothing.
create table pgqueue.recurring_run (
  name                text        not null,
  due_at              timestamptz not null,
  fired_at            timestamptz not null,
  outcome             text        not null check (outcome in ('enqueued', 'manual', 'overlapped', 'expired')),
  job_id              bigint      check ((job_id is not null) = (outcome in ('enqueued', 'manual'))),
  primary key (name, due_at)
);
create index recurring_run_due on pgqueue.recurring_run (due_at);
comment on table  pgqueue.recurring_run is 'Every due time that was dealt with, for as long as jobs are kept at most. See the view recurring_history.';
comment on column pgqueue.recurring_run.name is 'The definition.';
comment on column pgqueue.recurring_run.due_at is 'The due time, before jitter.';
comment on column pgqueue.recurring_run.fired_at is 'When it was dealt with.';
comment on column pgqueue.recurring_run.outcome is 'enqueued, manual (by run_recurring_now), overlapped (the last job was live) or expired (it came too late to start).';
comment on column pgqueue.recurring_run.job_id is 'The job.';
-- ------------------------------------------------------------------------------------------------- flows

-- Its row is the lock of everything that jobs of the flow do to each other. The counts are kept once a batch, under that
-- lock: so the last one is known to be the last, and nobody counts siblings.
create table pgqueue.flow (
  id                  bigint primary key generated always as identity,
  created_at          timestamptz not null,
  ended_at            timestamptz,
  prune_at            timestamptz,
  cancelled_at        timestamptz,
  done_at             timestamptz,
  total               integer not null,
  blocked             integer not null,
  completed           integer not null default 0,
  dead                integer not null default 0,
  cancelled           integer not null default 0,
  failed              boolean not null default false,
  name                text check (length(name) between 1 and 200),
  cancel_reason       text,
  on_done             jsonb,
  on_dead             jsonb
) with (fillfactor = 20);
create index flow_prune     on pgqueue.flow (prune_at) where prune_at is not null;
create index flow_cancelled on pgqueue.flow (id) where cancelled_at is not null and ended_at is null;
comment on table  pgqueue.flow is 'Jobs linked by "runs after". Made by enqueue_flow(), goes when its jobs have gone.';
comment on column pgqueue.flow.id is 'Given by enqueue_flow().';
comment on column pgqueue.flow.created_at is 'When it was enqueued.';
comment on column pgqueue.flow.ended_at is 'When its last job ended; null while any is live.';
comment on column pgqueue.flow.prune_at is 'When an ended flow may be removed.';
comment on column pgqueue.flow.cancelled_at is 'When somebody cancelled it as a whole; null again after a retry of one of its jobs.';
comment on column pgqueue.flow.done_at is 'When all had first ended well; on_done was enqueued then.';
comment on column pgqueue.flow.total is 'How many jobs it has.';
comment on column pgqueue.flow.blocked is 'How many of them wait for their parents.';
comment on column pgqueue.flow.completed is 'How many completed.';
comment on column pgqueue.flow.dead is 'How many are dead.';
comment on column pgqueue.flow.cancelled is 'How many were cancelled.';
comment on column pgqueue.flow.failed is 'It has ended, and something died or was cancelled that was not to be passed over (continue).';
comment on column pgqueue.flow.name is 'What people call it.';
comment on column pgqueue.flow.cancel_reason is 'Why it was cancelled.';
comment on column pgqueue.flow.on_done is 'The job to enqueue when all has ended well.';
comment on column pgqueue.flow.on_dead is 'The job to enqueue when a first job dies.';

-- Written twice or so, except the row of a job with many parents: that one changes once a batch of them, in place.
create table pgqueue.flow_node (
  job_id              bigint  primary key,
  flow_id             bigint  not null,
  open_parents        integer not null,
  owes                boolean not null default false,
  stopped_by          bigint,
  gone_at             timestamptz,
  run_in              interval,
  name                text    not null,
  outcome             text,
  fills               jsonb,
  result              jsonb
) with (fillfactor = 50);
create unique index flow_node_name on pgqueue.flow_node (flow_id, name);
create index flow_node_owes on pgqueue.flow_node (flow_id) where owes;
create index flow_node_gone on pgqueue.flow_node (gone_at) where gone_at is not null;
comment on table  pgqueue.flow_node is 'A job of a flow: what it waits for, and what its children need to know of its end, even when the job itself is gone.';
comment on column pgqueue.flow_node.job_id is 'The job.';
comment on column pgqueue.flow_node.flow_id is 'The flow.';
comment on column pgqueue.flow_node.open_parents is 'How many parents have not ended in a way that lets it run; whoever brings this to 0 releases the job, and it stays 0.';
comment on column pgqueue.flow_node.owes is 'It has ended, or was retried, and not all that hangs on it could be told at once: sweep() goes on.';
comment on column pgqueue.flow_node.stopped_by is 'The parent whose end has cancelled it; a retry of that one brings it back.';
comment on column pgqueue.flow_node.gone_at is 'A dead or cancelled job that children wait for can be retried until then.';
comment on column pgqueue.flow_node.run_in is 'Starts no earlier than this after its parents have ended.';
comment on column pgqueue.flow_node.name is 'Its name in the flow.';
comment on column pgqueue.flow_node.outcome is 'completed, dead or cancelled; null while it is live.';
comment on column pgqueue.flow_node.fills is 'Which arguments are results of parents, put in when the job is released.';
comment on column pgqueue.flow_node.result is 'What it returned, if it has children: a copy that outlives the job.';

create table pgqueue.flow_edge (
  parent_id           bigint  not null,
  child_id            bigint  not null,
  position            integer not null,
  on_death            text    not null check (on_death in ('wait', 'stop', 'continue')),
  primary key (parent_id, child_id)
);
create index flow_edge_child on pgqueue.flow_edge (child_id, position);
comment on table  pgqueue.flow_edge is 'The child runs after the parent. Never changed.';
comment on column pgqueue.flow_edge.parent_id is 'The job that runs first.';
comment on column pgqueue.flow_edge.child_id is 'The job that runs after it.';
comment on column pgqueue.flow_edge.position is 'Which of the child''s parents it is.';
comment on column pgqueue.flow_edge.on_death is 'When the parent dies or is cancelled: wait for a retry, stop (the child is cancelled), or continue as if it had completed.';

-- ---------------------------------------------------------------------------------------------- workers

create table pgqueue.worker (
  id                  bigint primary key generated always as identity,
  heartbeat_at        timestamptz not null,
  started_at          timestamptz not null,
  lost_at             timestamptz,
  lease_seconds       integer not null check (lease_seconds between 1 and 86400),
  name                text not null,
  queues              text[] not null,
  info                jsonb not null default '{}',
  drain_requested_at  timestamptz
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
comment on column pgqueue.worker.drain_requested_at is 'An operator wants it to finish what it runs and to end.';

-- ---------------------------------------------------------------------------------------------- metrics

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

-- ------------------------------------------------------------------------------------------------ audit

create table pgqueue.audit (
  id                  bigint      not null generated always as identity primary key,
  at                  timestamptz not null,
  actor               text        not null,
  address             text,
  login               text        not null,
  action              text        not null,
  target              text,
  detail              jsonb       not null
);
comment on table  pgqueue.audit is 'Who did what by the web page. Nothing removes rows: people make few.';
comment on column pgqueue.audit.id is 'Counts up.';
comment on column pgqueue.audit.at is 'When.';
comment on column pgqueue.audit.actor is 'Who, as the page knows them.';
comment on column pgqueue.audit.address is 'From where.';
comment on column pgqueue.audit.login is 'By which login of the database.';
comment on column pgqueue.audit.action is 'What was done.';
comment on column pgqueue.audit.target is 'To what: a job, queue, task, worker, recurring job, or a search.';
comment on column pgqueue.audit.detail is 'Reason, options and counts; never a payload.';

-- --------------------------------------------------------------------------------------------- installed

-- Row locks, not advisory locks: those every user of the database can take, and hold.
create table pgqueue.mutex (
  name                text primary key
);
insert into pgqueue.mutex values ('sweep'), ('partitions'), ('limits'), ('metrics');
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
