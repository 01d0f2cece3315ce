-- recurring_status: how each recurring job is doing.
create or replace view pgqueue.recurring_status as
select r.name,
       case when not r.active then 'retired'
            when r.paused_at is not null and coalesce(r.paused_until > clock_timestamp(), true) then 'paused'
            when r.broken_at is not null then 'broken'
            when not r.planned then 'new'
            when r.next_run_at is null then 'ended'
            when greatest(r.next_run_at, r.paused_until) < clock_timestamp() - interval '1 minute' then 'late'
            else 'scheduled' end as state,
       coalesce(r.cron, format('every %ss', trim_scale(extract(epoch from r.every)))) as schedule, r.timezone, r.queue, r.task, r.next_run_at, r.last_due_at,
       r.last_job_id, j.status as last_status, j.finished_at as last_finished_at, j.error as last_error, r.missed_at,
       r.broken_at, r.broken_reason, r.paused_until, r.paused_reason, r.owner, r.source, r.edited_at, r.catch_up, r.overlap,
       r.jitter, r.starts_at, r.ends_at, r.changed_at
from pgqueue.recurring_job r
left join lateral (select k.status, k.finished_at, k.error from pgqueue.job k where k.id = r.last_job_id) j on true
order by r.name;
comment on view pgqueue.recurring_status is 'One row a recurring job: its state, when it is due next, its last job and what became of it.';
comment on column pgqueue.recurring_status.name is 'The name.';
comment on column pgqueue.recurring_status.state is 'scheduled, late (due for over a minute: does a ticker run?), new (no ticker has seen it), paused, broken, ended (nothing is due any more) or retired (its app declares it no longer).';
comment on column pgqueue.recurring_status.schedule is 'The cron expression, or every and a distance in seconds.';
comment on column pgqueue.recurring_status.timezone is 'The zone whose wall clock the expression follows.';
comment on column pgqueue.recurring_status.queue is 'The queue of its jobs.';
comment on column pgqueue.recurring_status.task is 'The task that its jobs run.';
comment on column pgqueue.recurring_status.next_run_at is 'The next due time, before jitter.';
comment on column pgqueue.recurring_status.last_due_at is 'The last due time that was dealt with.';
comment on column pgqueue.recurring_status.last_job_id is 'The last job.';
comment on column pgqueue.recurring_status.last_status is 'The status of the last job; null: there was none, or it has been pruned.';
comment on column pgqueue.recurring_status.last_finished_at is 'When the last job finished.';
comment on column pgqueue.recurring_status.last_error is 'Why the last job failed, died or was cancelled.';
comment on column pgqueue.recurring_status.missed_at is 'The last due time that catch_up left out.';
comment on column pgqueue.recurring_status.broken_at is 'Since when nothing can be done with it.';
comment on column pgqueue.recurring_status.broken_reason is 'Why.';
comment on column pgqueue.recurring_status.paused_until is 'The pause ends by itself at this time.';
comment on column pgqueue.recurring_status.paused_reason is 'Why it is paused.';
comment on column pgqueue.recurring_status.owner is 'code or operator.';
comment on column pgqueue.recurring_status.source is 'Which app declares it.';
comment on column pgqueue.recurring_status.edited_at is 'When an operator changed what an app declared; that holds until the declaration changes.';
comment on column pgqueue.recurring_status.catch_up is 'skip, latest or all: what becomes of due times that passed while no ticker ran.';
comment on column pgqueue.recurring_status.overlap is 'allow, skip or replace: while the last job is live.';
comment on column pgqueue.recurring_status.jitter is 'Each job starts up to this much after it is due.';
comment on column pgqueue.recurring_status.starts_at is 'Nothing is due before.';
comment on column pgqueue.recurring_status.ends_at is 'Nothing is due after.';
comment on column pgqueue.recurring_status.changed_at is 'When the definition was last changed.';
