-- attempt: the history of every job: each claim and how it ended.
create or replace view pgqueue.attempt as
select a.job_id, a.token, a.attempt, a.queue, a.task, a.outcome, a.started_at, a.finished_at, a.worker_id, a.delay_seconds,
       a.error_type, a.error, a.traceback
from pgqueue.job_attempt a
union all
select j.id, j.token, j.attempt, j.queue, j.task, case j.status when 'running' then 'running' else 'completed' end,
       j.started_at, j.finished_at, j.worker_id, null, null, null, null
from pgqueue.job j where j.status in ('running', 'completed');
comment on view pgqueue.attempt is 'Each claim of each job and how it ended: filter by job_id.';
comment on column pgqueue.attempt.job_id is 'The job.';
comment on column pgqueue.attempt.token is 'Lease token: the number of the claim.';
comment on column pgqueue.attempt.attempt is 'Which attempt.';
comment on column pgqueue.attempt.queue is 'The queue.';
comment on column pgqueue.attempt.task is 'The task.';
comment on column pgqueue.attempt.outcome is 'completed, failed, lost, snoozed, released, cancelled or running.';
comment on column pgqueue.attempt.started_at is 'When it was claimed.';
comment on column pgqueue.attempt.finished_at is 'When it ended.';
comment on column pgqueue.attempt.worker_id is 'Who ran it.';
comment on column pgqueue.attempt.delay_seconds is 'How long the job then had to wait.';
comment on column pgqueue.attempt.error_type is 'Class of the error.';
comment on column pgqueue.attempt.error is 'Its message.';
comment on column pgqueue.attempt.traceback is 'Where it happened.';
