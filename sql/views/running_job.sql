-- running_job: what is running now, on which worker, for how long.
create or replace view pgqueue.running_job as
select j.id, j.queue, j.task, j.key, j.priority, j.attempt, j.token, j.crashes, j.started_at,
       round(extract(epoch from clock_timestamp() - j.started_at), 3) as running_seconds,
       coalesce(j.timeout_seconds, q.timeout_seconds, s.timeout_seconds) as timeout_seconds,
       j.progress, j.cancel_requested_at, j.worker_id, w.name as worker_name,
       round(extract(epoch from clock_timestamp() - w.heartbeat_at), 3) as beat_age_seconds, j.tags
from pgqueue.job_live j cross join pgqueue.setting s
left join pgqueue.queue q on q.queue = j.queue
left join pgqueue.worker w on w.id = j.worker_id
where j.status = 'running';
comment on view pgqueue.running_job is 'What is running now.';
comment on column pgqueue.running_job.id is 'The job.';
comment on column pgqueue.running_job.queue is 'The queue.';
comment on column pgqueue.running_job.task is 'The task.';
comment on column pgqueue.running_job.key is 'Idempotency key.';
comment on column pgqueue.running_job.priority is 'Priority.';
comment on column pgqueue.running_job.attempt is 'Which attempt.';
comment on column pgqueue.running_job.token is 'Lease token.';
comment on column pgqueue.running_job.crashes is 'How often its worker died.';
comment on column pgqueue.running_job.started_at is 'When it was claimed.';
comment on column pgqueue.running_job.running_seconds is 'For how long.';
comment on column pgqueue.running_job.timeout_seconds is 'How long it may run; the setting in force.';
comment on column pgqueue.running_job.progress is 'What it last said of its progress.';
comment on column pgqueue.running_job.cancel_requested_at is 'When somebody asked it to stop.';
comment on column pgqueue.running_job.worker_id is 'Its worker.';
comment on column pgqueue.running_job.worker_name is 'Host and process of its worker.';
comment on column pgqueue.running_job.beat_age_seconds is 'Since its worker last beat.';
comment on column pgqueue.running_job.tags is 'Labels.';
