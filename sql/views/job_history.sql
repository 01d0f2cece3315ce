-- job_history: each claim of a job and how it ended, without tracebacks: for readers, filter by job_id.
create or replace view pgqueue.job_history as
select a.job_id, a.token, a.attempt, a.queue, a.task, a.outcome, a.started_at, a.finished_at, a.worker_id, a.delay_seconds, a.error_type, a.error
from pgqueue.attempt a;
comment on view pgqueue.job_history is 'Each claim of a job and how it ended, without tracebacks: filter by job_id.';
comment on column pgqueue.job_history.job_id is 'The job.';
comment on column pgqueue.job_history.token is 'Lease token: the number of the claim.';
comment on column pgqueue.job_history.attempt is 'Which attempt.';
comment on column pgqueue.job_history.queue is 'The queue.';
comment on column pgqueue.job_history.task is 'The task.';
comment on column pgqueue.job_history.outcome is 'completed, failed, lost, snoozed, released, cancelled or running.';
comment on column pgqueue.job_history.started_at is 'When it was claimed.';
comment on column pgqueue.job_history.finished_at is 'When it ended.';
comment on column pgqueue.job_history.worker_id is 'Who ran it.';
comment on column pgqueue.job_history.delay_seconds is 'How long the job then had to wait.';
comment on column pgqueue.job_history.error_type is 'Class of the error.';
comment on column pgqueue.job_history.error is 'Its message.';
