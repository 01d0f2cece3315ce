-- group_status: groups that claims have met: what runs, what waits, why. Filter by queue; of many groups read the first.
create or replace view pgqueue.group_status as
select g.queue, g.group_key,
       (select count(*) from pgqueue.job_live j where j.queue = g.queue and j.group_key = g.group_key and j.holds_slot and j.status = 'running') as running,
       (select count(*) from pgqueue.job_live j where j.queue = g.queue and j.group_key = g.group_key and j.holds_slot and j.status <> 'running') as next,
       (select count(*) from (select 1 from pgqueue.job_live j where j.queue = g.queue and j.group_key = g.group_key and j.waits_for = 'group' limit 10001) c) as blocked,
       q.group_max_running as max_running,
       g.paused_at is not null and coalesce(g.paused_until > clock_timestamp(), true) as paused, g.paused_until, g.paused_reason,
       nullif(greatest(g.not_before, g.full_at - make_interval(secs =>
         (coalesce(q.group_rate_burst, greatest(1, floor(q.group_rate * 0.1 / q.group_rate_seconds)::integer)) - 1) * q.group_rate_seconds / q.group_rate)),
         '-infinity') as next_eligible_at
from pgqueue.queue_group g
join pgqueue.queue q on q.queue = g.queue;
comment on view pgqueue.group_status is 'Groups of queues with limits a group: what runs, what waits, why.';
comment on column pgqueue.group_status.queue is 'The queue.';
comment on column pgqueue.group_status.group_key is 'The group.';
comment on column pgqueue.group_status.running is 'Jobs of the group that run.';
comment on column pgqueue.group_status.next is 'Jobs that have their slot and are next in line, or wait for a retry that holds the group.';
comment on column pgqueue.group_status.blocked is 'Jobs that wait for a slot or their turn; exact up to 10,000. Jobs that no claim has met yet are not counted.';
comment on column pgqueue.group_status.max_running is 'At most so many of the group run at the same time.';
comment on column pgqueue.group_status.paused is 'Nothing of the group is claimed.';
comment on column pgqueue.group_status.paused_until is 'When the pause ends by itself.';
comment on column pgqueue.group_status.paused_reason is 'Why it is paused.';
comment on column pgqueue.group_status.next_eligible_at is 'When the group''s rate, or a handler that was rate limited, lets the next job start; in the past: now.';
