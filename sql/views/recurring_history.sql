-- recurring_history: each due time that was dealt with, and what became of its job. Filter by name.
create or replace view pgqueue.recurring_history as
select h.name, h.due_at, h.fired_at, h.outcome, h.job_id, j.status, j.finished_at, j.error
from pgqueue.recurring_run h
left join lateral (select k.status, k.finished_at, k.error from pgqueue.job k where k.id = h.job_id) j on true;
comment on view pgqueue.recurring_history is 'Each due time that was dealt with, and what became of its job: filter by name.';
comment on column pgqueue.recurring_history.name is 'The recurring job.';
comment on column pgqueue.recurring_history.due_at is 'The due time, before jitter.';
comment on column pgqueue.recurring_history.fired_at is 'When it was dealt with.';
comment on column pgqueue.recurring_history.outcome is 'enqueued, manual (by run_recurring_now), overlapped (the last job was live) or expired (it came too late to start).';
comment on column pgqueue.recurring_history.job_id is 'The job.';
comment on column pgqueue.recurring_history.status is 'The status of the job; null: there was none, or it has been pruned.';
comment on column pgqueue.recurring_history.finished_at is 'When the job finished.';
comment on column pgqueue.recurring_history.error is 'Why the job failed, died or was cancelled.';
