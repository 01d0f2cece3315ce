-- Limits, groups, task pauses and circuit breakers.

-- Their signatures change: old calls go on working, because what is new has defaults or comes last.
do $$
declare
  v_function regprocedure;
begin
  for v_function in select p.oid::regprocedure from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace
                    and p.proname in ('enqueue', 'enqueue_many', 'claim', 'complete_and_claim', 'sweep') loop
    execute format('drop function %s', v_function);
  end loop;
end
$$;

alter table pgqueue.queue
  add column max_running integer check (max_running between 1 and 100000),
  add column rate integer check (rate between 1 and 1000000000),
  add column rate_seconds real check (rate_seconds between 0.001 and 31536000),
  add column rate_burst integer check (rate_burst between 1 and 1000000),
  add column fair boolean not null default false,
  add column group_max_running integer check (group_max_running between 1 and 100000),
  add column group_rate integer check (group_rate between 1 and 1000000000),
  add column group_rate_seconds real check (group_rate_seconds between 0.001 and 31536000),
  add column group_rate_burst integer check (group_rate_burst between 1 and 1000000),
  add column group_on_retry text not null default 'hold' check (group_on_retry in ('hold', 'step_aside')),
  add column max_depth integer check (max_depth between 1 and 1000000000),
  add column shed_below smallint check (shed_below between -100 and 100),
  add column gated boolean not null default false,
  add column grouped boolean not null default false,
  add column came regclass,
  add column went regclass,
  add constraint queue_rate_whole check ((rate is null) = (rate_seconds is null) and (rate is not null or rate_burst is null)),
  add constraint queue_group_rate_whole check ((group_rate is null) = (group_rate_seconds is null) and (group_rate is not null or group_rate_burst is null)),
  add constraint queue_shed_needs_depth check (max_depth is not null or shed_below is null);
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

insert into pgqueue.mutex values ('limits');

alter table pgqueue.job
  add column group_key text,
  add column waits_for text,
  add column holds_slot boolean not null default false;
comment on column pgqueue.job.group_key is 'The group, tenant for example, that limits and turns of the queue are about.';
comment on column pgqueue.job.waits_for is 'What a blocked job waits for: group (a slot or its turn), task (paused, or its circuit is open).';
comment on column pgqueue.job.holds_slot is 'Counts against max_running of its queue and of its group: it runs, is the next of its group, or waits for a retry that holds the group.';
create        index job_live_slot      on pgqueue.job_live (queue, group_key) where holds_slot;
create        index job_live_line      on pgqueue.job_live (queue, group_key, priority, rank_at) where group_key is not null and status = 'pending';
create        index job_live_parked    on pgqueue.job_live (queue, group_key, priority, rank_at) where waits_for = 'group';
create        index job_live_held      on pgqueue.job_live (task, queue, rank_at) where waits_for = 'task';
