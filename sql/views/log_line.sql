-- log_line: what handlers wrote beside their jobs; for operators, filter by job_id.
create or replace view pgqueue.log_line as
select l.job_id, l.logged_at, l.token, l.queue, l.level, l.message from pgqueue.job_log l;
comment on view pgqueue.log_line is 'What handlers wrote for people to read: filter by job_id.';
comment on column pgqueue.log_line.job_id is 'The job.';
comment on column pgqueue.log_line.logged_at is 'When.';
comment on column pgqueue.log_line.token is 'The lease token of the claim that wrote it.';
comment on column pgqueue.log_line.queue is 'The queue.';
comment on column pgqueue.log_line.level is 'debug, info, warning or error.';
comment on column pgqueue.log_line.message is 'The line.';
