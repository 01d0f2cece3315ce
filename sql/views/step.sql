-- step: what handlers have finished and need not do again; for operators, filter by job_id.
create or replace view pgqueue.step as
select t.job_id, t.saved_at, t.token, t.queue, t.name, t.result from pgqueue.job_step t;
comment on view pgqueue.step is 'Finished steps of jobs: filter by job_id.';
comment on column pgqueue.step.job_id is 'The job.';
comment on column pgqueue.step.saved_at is 'When it was finished.';
comment on column pgqueue.step.token is 'The lease token of the claim that finished it.';
comment on column pgqueue.step.queue is 'The queue.';
comment on column pgqueue.step.name is 'The name, unique within the job.';
comment on column pgqueue.step.result is 'What it returned.';
