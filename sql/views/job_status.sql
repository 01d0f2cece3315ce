-- job_status: a job without what it carries: for readers, filter by id.
create or replace view pgqueue.job_status as
select j.id, j.status, j.queue, j.task, j.key, j.priority, j.attempt,
       coalesce(j.max_attempts, q.max_attempts, s.max_attempts) as max_attempts, j.crashes, j.enqueued_at, j.run_at, j.rank_at,
       j.expires_at, j.started_at, j.finished_at, j.prune_at, j.cancel_requested_at, j.worker_id, j.token,
       coalesce(j.timeout_seconds, q.timeout_seconds, s.timeout_seconds) as timeout_seconds, j.tags, j.group_key, j.waits_for, j.flow_id,
       j.progress, j.error_type, j.error
from pgqueue.job j cross join pgqueue.setting s left join pgqueue.queue q on q.queue = j.queue;
comment on view pgqueue.job_status is 'A job without payload, result and meta: filter by id.';
comment on column pgqueue.job_status.id is 'Unique over all leaves.';
comment on column pgqueue.job_status.status is 'blocked, scheduled, pending, running, completed, cancelled or dead.';
comment on column pgqueue.job_status.queue is 'The queue.';
comment on column pgqueue.job_status.task is 'The name of the handler.';
comment on column pgqueue.job_status.key is 'Idempotency key: one live job for each (queue, key).';
comment on column pgqueue.job_status.priority is '-100 to 100, higher first, each point a head start of the queue''s boost.';
comment on column pgqueue.job_status.attempt is 'Attempts charged so far, the running one included.';
comment on column pgqueue.job_status.max_attempts is 'So many attempts it has; the setting in force.';
comment on column pgqueue.job_status.crashes is 'How often its worker died while running it.';
comment on column pgqueue.job_status.enqueued_at is 'When enqueue() was called, by the wall clock of the database.';
comment on column pgqueue.job_status.run_at is 'Not claimable before this time.';
comment on column pgqueue.job_status.rank_at is 'When the job became claimable; the order within its lane. While scheduled: run_at.';
comment on column pgqueue.job_status.expires_at is 'Never started after this time: cancelled instead.';
comment on column pgqueue.job_status.started_at is 'When the current or last attempt was claimed.';
comment on column pgqueue.job_status.finished_at is 'When the job was completed, cancelled or died.';
comment on column pgqueue.job_status.prune_at is 'When the finished job may be removed.';
comment on column pgqueue.job_status.cancel_requested_at is 'Somebody asked the running job to stop; its worker learns it with its heartbeat.';
comment on column pgqueue.job_status.worker_id is 'The worker that holds, or last held, the lease.';
comment on column pgqueue.job_status.token is 'Lease token: the number of claims ever made of this job. With worker_id it fences every report.';
comment on column pgqueue.job_status.timeout_seconds is 'So long an attempt may run; the setting in force.';
comment on column pgqueue.job_status.tags is 'Labels to find it by.';
comment on column pgqueue.job_status.group_key is 'The group, tenant for example, that limits and turns of the queue are about.';
comment on column pgqueue.job_status.waits_for is 'What a blocked job waits for: group (a slot or its turn), task (paused, or its circuit is open).';
comment on column pgqueue.job_status.flow_id is 'The flow that it is a job of; null: of none.';
comment on column pgqueue.job_status.progress is 'What the handler last said of its progress.';
comment on column pgqueue.job_status.error_type is 'Class of the last error.';
comment on column pgqueue.job_status.error is 'Message of the last error, or why the job was cancelled.';
