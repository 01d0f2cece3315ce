-- task_status: tasks that are paused, have a circuit breaker, or fail everywhere.
create or replace view pgqueue.task_status as
select t.task, t.paused_at is not null and coalesce(t.paused_until > clock_timestamp(), true) as paused, t.paused_until, t.paused_reason,
       t.circuit, t.circuit_changed_at, t.circuit_reason, t.circuit_probe, t.circuit_probe_at,
       t.breaker_rate, t.breaker_min, t.breaker_window, t.breaker_open, t.alarmed_at,
       (select count(*) from (select 1 from pgqueue.job_live j where j.task = t.task and j.waits_for = 'task' limit 100001) c) as blocked
from pgqueue.task t;
comment on view pgqueue.task_status is 'Tasks that are paused, have a circuit breaker, or fail everywhere.';
comment on column pgqueue.task_status.task is 'The task.';
comment on column pgqueue.task_status.paused is 'No job of it is claimed.';
comment on column pgqueue.task_status.paused_until is 'When the pause ends by itself.';
comment on column pgqueue.task_status.paused_reason is 'Why it is paused.';
comment on column pgqueue.task_status.circuit is 'closed, open or half_open.';
comment on column pgqueue.task_status.circuit_changed_at is 'Since when.';
comment on column pgqueue.task_status.circuit_reason is 'Why it opened.';
comment on column pgqueue.task_status.circuit_probe is 'The job that is let through to see whether it works again.';
comment on column pgqueue.task_status.circuit_probe_at is 'When an open circuit lets a probe through.';
comment on column pgqueue.task_status.breaker_rate is 'The circuit opens when this share of the attempts fails …';
comment on column pgqueue.task_status.breaker_min is '… of at least so many …';
comment on column pgqueue.task_status.breaker_window is '… within so many seconds.';
comment on column pgqueue.task_status.breaker_open is 'After so many seconds it is probed.';
comment on column pgqueue.task_status.alarmed_at is 'When it was found to fail everywhere.';
comment on column pgqueue.task_status.blocked is 'Its jobs that are held back; exact up to 100,000.';
