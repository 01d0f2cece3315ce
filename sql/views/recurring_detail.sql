-- recurring_detail: everything about a recurring job, payload included; for operators.
create or replace view pgqueue.recurring_detail as
select r.name, r.queue, r.task, r.payload, r.cron, r.every, r.timezone, r.starts_at, r.ends_at, r.jitter, r.catch_up,
  r.catch_up_max, r.overlap, r.priority, r.max_attempts, r.retry, r.timeout_seconds, r.tags, r.meta, r.expires_in,
  r.retain_for, r.owner, r.source, r.declared, r.edited_at, r.active, r.paused_at, r.paused_until, r.paused_reason,
  r.version, r.planned, r.planned_from, r.next_run_at, r.last_due_at, r.last_job_id, r.missed_at, r.broken_at,
  r.broken_reason, r.recheck_at, r.created_at, r.changed_at, r.group_key
from pgqueue.recurring_job r;
comment on view pgqueue.recurring_detail is 'Everything about a recurring job, payload included.';
comment on column pgqueue.recurring_detail.name is 'The name.';
comment on column pgqueue.recurring_detail.queue is 'The queue of its jobs.';
comment on column pgqueue.recurring_detail.task is 'The task that its jobs run.';
comment on column pgqueue.recurring_detail.payload is 'The arguments of the task.';
comment on column pgqueue.recurring_detail.cron is 'When, as an expression of 5 or 6 fields (seconds first) or an alias, by the wall clock of timezone.';
comment on column pgqueue.recurring_detail.every is 'When, as a distance: counted from starts_at, else from 1970-01-01 00:00 UTC.';
comment on column pgqueue.recurring_detail.timezone is 'The zone whose wall clock cron follows.';
comment on column pgqueue.recurring_detail.starts_at is 'Nothing is due before.';
comment on column pgqueue.recurring_detail.ends_at is 'Nothing is due after.';
comment on column pgqueue.recurring_detail.jitter is 'Each job starts up to this much after it is due.';
comment on column pgqueue.recurring_detail.catch_up is 'What becomes of due times that passed while no ticker ran: skip (more than a minute late: nothing), latest (one job for the last one) or all.';
comment on column pgqueue.recurring_detail.catch_up_max is 'With catch_up all: so many at most, the latest.';
comment on column pgqueue.recurring_detail.overlap is 'While the last job is live: allow another, skip this due time, or replace the last one (cancelled; asked to stop if it runs).';
comment on column pgqueue.recurring_detail.priority is 'Of its jobs.';
comment on column pgqueue.recurring_detail.max_attempts is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_detail.retry is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_detail.timeout_seconds is 'Of its jobs; null: as the queue says.';
comment on column pgqueue.recurring_detail.tags is 'Of its jobs.';
comment on column pgqueue.recurring_detail.meta is 'Of its jobs; the name and the due time are added to it.';
comment on column pgqueue.recurring_detail.expires_in is 'Its jobs never start later than this after their due time.';
comment on column pgqueue.recurring_detail.retain_for is 'Its jobs are kept for this long after they have finished; null: as the queue says.';
comment on column pgqueue.recurring_detail.owner is 'code: declared by an app, which changes and retires it. operator: made at run time.';
comment on column pgqueue.recurring_detail.source is 'Which app declares it.';
comment on column pgqueue.recurring_detail.declared is 'What that app last declared. An edit holds until the declaration itself changes.';
comment on column pgqueue.recurring_detail.edited_at is 'When an operator changed what an app declared.';
comment on column pgqueue.recurring_detail.active is 'False: retired, its app declares it no longer.';
comment on column pgqueue.recurring_detail.paused_at is 'Not null: nothing is due (until paused_until, if given). What would have been due meanwhile is not made up for.';
comment on column pgqueue.recurring_detail.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.recurring_detail.paused_reason is 'Why, in the words of whoever paused it.';
comment on column pgqueue.recurring_detail.version is 'Counted up by whatever changes what is due next: what was computed for an older one is refused.';
comment on column pgqueue.recurring_detail.planned is 'False: a ticker has yet to compute next_run_at.';
comment on column pgqueue.recurring_detail.planned_from is 'Due times are counted from after this moment: when the schedule was set, or a pause ended.';
comment on column pgqueue.recurring_detail.next_run_at is 'The next due time, before jitter. Null although planned: there is none any more.';
comment on column pgqueue.recurring_detail.last_due_at is 'The last due time that was dealt with.';
comment on column pgqueue.recurring_detail.last_job_id is 'The last job.';
comment on column pgqueue.recurring_detail.missed_at is 'The last due time that catch_up left out.';
comment on column pgqueue.recurring_detail.broken_at is 'Since when no due time can be computed or no job enqueued: an unknown zone, a task that is gone.';
comment on column pgqueue.recurring_detail.broken_reason is 'Why.';
comment on column pgqueue.recurring_detail.recheck_at is 'When a ticker tries again.';
comment on column pgqueue.recurring_detail.created_at is 'When it was first declared or made.';
comment on column pgqueue.recurring_detail.changed_at is 'When the definition was last changed.';
comment on column pgqueue.recurring_detail.group_key is 'Of its jobs: the group that limits and turns of the queue are about.';
