-- recent_failure: attempts that failed or were lost in the last hour, the newest first.
create or replace view pgqueue.recent_failure as
select a.job_id, a.queue, a.task, a.attempt, a.outcome, a.error_type, a.error, a.started_at, a.finished_at,
       round(extract(epoch from a.finished_at - a.started_at), 3) as ran_seconds, a.delay_seconds, a.worker_id
from pgqueue.job_attempt a
where a.finished_at > now() - interval '1 hour' and a.outcome in ('failed', 'lost')
order by a.finished_at desc;
comment on view pgqueue.recent_failure is 'Attempts that failed or were lost in the last hour.';
comment on column pgqueue.recent_failure.job_id is 'The job.';
comment on column pgqueue.recent_failure.queue is 'The queue.';
comment on column pgqueue.recent_failure.task is 'The task.';
comment on column pgqueue.recent_failure.attempt is 'Which attempt.';
comment on column pgqueue.recent_failure.outcome is 'failed or lost.';
comment on column pgqueue.recent_failure.error_type is 'Class of the error.';
comment on column pgqueue.recent_failure.error is 'Its message.';
comment on column pgqueue.recent_failure.started_at is 'When it was claimed.';
comment on column pgqueue.recent_failure.finished_at is 'When it failed.';
comment on column pgqueue.recent_failure.ran_seconds is 'How long it ran.';
comment on column pgqueue.recent_failure.delay_seconds is 'How long the job then had to wait; null: it died.';
comment on column pgqueue.recent_failure.worker_id is 'Who ran it.';
