-- flow_status: flows, how far they are, and whether they can go on.
create or replace view pgqueue.flow_status as
select f.id, f.name,
       case when f.ended_at is not null and f.cancelled_at is not null then 'cancelled'
            when f.ended_at is not null and f.failed then 'failed'
            when f.ended_at is not null then 'completed'
            when f.cancelled_at is not null then 'cancelling'
            when f.total - f.completed - f.dead - f.cancelled = f.blocked then 'stalled'
            else 'running' end as status,
       f.total, f.blocked, f.completed, f.dead, f.cancelled,
       round((f.completed + f.dead + f.cancelled)::numeric / f.total, 4) as progress,
       f.created_at, f.ended_at, f.cancelled_at, f.cancel_reason
from pgqueue.flow f;
comment on view pgqueue.flow_status is 'Flows: how far they are, and whether they can go on.';
comment on column pgqueue.flow_status.id is 'The flow.';
comment on column pgqueue.flow_status.name is 'What people call it.';
comment on column pgqueue.flow_status.status is 'running; stalled: all that is left waits for something dead or cancelled; cancelling; ended: completed, failed, cancelled.';
comment on column pgqueue.flow_status.total is 'How many jobs it has.';
comment on column pgqueue.flow_status.blocked is 'How many wait for their parents.';
comment on column pgqueue.flow_status.completed is 'How many completed.';
comment on column pgqueue.flow_status.dead is 'How many are dead.';
comment on column pgqueue.flow_status.cancelled is 'How many were cancelled.';
comment on column pgqueue.flow_status.progress is 'The share of its jobs that have ended, from 0 to 1.';
comment on column pgqueue.flow_status.created_at is 'When it was enqueued.';
comment on column pgqueue.flow_status.ended_at is 'When its last job ended.';
comment on column pgqueue.flow_status.cancelled_at is 'When it was cancelled as a whole.';
comment on column pgqueue.flow_status.cancel_reason is 'Why.';
