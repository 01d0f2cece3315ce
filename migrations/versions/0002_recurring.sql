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
