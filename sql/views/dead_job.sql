-- dead_job: dead letters, the newest first, with their last error.
create or replace view pgqueue.dead_job as
select j.id, j.queue, j.task, j.key, j.priority, j.attempt, j.crashes, j.error_type, j.error, j.enqueued_at, j.finished_at,
       round(extract(epoch from clock_timestamp() - j.finished_at), 3) as dead_seconds, j.prune_at, j.tags
from pgqueue.job_dead j order by j.finished_at desc;
comment on view pgqueue.dead_job is 'Dead letters.';
comment on column pgqueue.dead_job.id is 'The job.';
comment on column pgqueue.dead_job.queue is 'The queue.';
comment on column pgqueue.dead_job.task is 'The task.';
comment on column pgqueue.dead_job.key is 'Idempotency key.';
comment on column pgqueue.dead_job.priority is 'Priority.';
comment on column pgqueue.dead_job.attempt is 'Attempts it had.';
comment on column pgqueue.dead_job.crashes is 'How often its worker died.';
comment on column pgqueue.dead_job.error_type is 'Class of the last error.';
comment on column pgqueue.dead_job.error is 'Its message.';
comment on column pgqueue.dead_job.enqueued_at is 'When it was enqueued.';
comment on column pgqueue.dead_job.finished_at is 'When it died.';
comment on column pgqueue.dead_job.dead_seconds is 'Since when.';
comment on column pgqueue.dead_job.prune_at is 'When it goes.';
comment on column pgqueue.dead_job.tags is 'Labels.';
