-- worker_status: who works, on what, and when it last beat.
create or replace view pgqueue.worker_status as
select w.id, w.name,
       case when w.lost_at is not null then 'lost'
            when w.heartbeat_at <= clock_timestamp() - make_interval(secs => w.lease_seconds) then 'silent'
            when w.drain_requested_at is not null then 'draining'
            else 'alive' end as state,
       w.queues, (select count(*) from pgqueue.job_live j where j.worker_id = w.id and j.status = 'running') as running,
       round(extract(epoch from clock_timestamp() - w.heartbeat_at), 3) as beat_age_seconds, w.lease_seconds, w.started_at, w.lost_at, w.info, w.drain_requested_at
from pgqueue.worker w order by w.id;
comment on view pgqueue.worker_status is 'Who works, on what, and when it last beat.';
comment on column pgqueue.worker_status.id is 'The worker.';
comment on column pgqueue.worker_status.name is 'Host and process.';
comment on column pgqueue.worker_status.state is 'alive, draining, silent (its lease ran out, the next sweep takes its jobs) or lost.';
comment on column pgqueue.worker_status.queues is 'The queues it serves.';
comment on column pgqueue.worker_status.running is 'How many jobs it holds.';
comment on column pgqueue.worker_status.beat_age_seconds is 'Since its last beat.';
comment on column pgqueue.worker_status.lease_seconds is 'It is lost after this long without a beat.';
comment on column pgqueue.worker_status.started_at is 'When it registered.';
comment on column pgqueue.worker_status.lost_at is 'When it was declared lost.';
comment on column pgqueue.worker_status.info is 'Version, tasks it knows, concurrency.';
comment on column pgqueue.worker_status.drain_requested_at is 'When an operator asked it to end.';
