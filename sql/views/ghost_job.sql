-- ghost_job: running jobs whose worker is gone; the next sweep rescues them.
create or replace view pgqueue.ghost_job as
select j.id, j.queue, j.task, j.attempt, j.token, j.crashes, j.started_at, j.worker_id, w.name as worker_name, w.heartbeat_at, w.lost_at
from pgqueue.job_live j left join pgqueue.worker w on w.id = j.worker_id
where j.status = 'running'
  and (w.id is null or w.lost_at is not null or w.heartbeat_at <= clock_timestamp() - make_interval(secs => w.lease_seconds));
comment on view pgqueue.ghost_job is 'Running jobs whose worker is gone.';
comment on column pgqueue.ghost_job.id is 'The job.';
comment on column pgqueue.ghost_job.queue is 'The queue.';
comment on column pgqueue.ghost_job.task is 'The task.';
comment on column pgqueue.ghost_job.attempt is 'Which attempt.';
comment on column pgqueue.ghost_job.token is 'Lease token.';
comment on column pgqueue.ghost_job.crashes is 'How often its worker died before.';
comment on column pgqueue.ghost_job.started_at is 'When it was claimed.';
comment on column pgqueue.ghost_job.worker_id is 'Its worker.';
comment on column pgqueue.ghost_job.worker_name is 'Host and process; null: the row is gone too.';
comment on column pgqueue.ghost_job.heartbeat_at is 'The last beat.';
comment on column pgqueue.ghost_job.lost_at is 'When sweep() declared it lost.';
