alter table pgqueue.recurring_job add column group_key text;
comment on column pgqueue.recurring_job.group_key is 'Of its jobs: the group that limits and turns of the queue are about.';

-- They get a column or a parameter more, at the end.
drop function if exists pgqueue.list_jobs(jsonb, bigint, integer);
drop function if exists pgqueue.list_dead(jsonb, timestamptz, bigint, integer);
drop function if exists pgqueue.retry_many(text, text, text, text, text, text, timestamptz, timestamptz, interval, bigint, integer, text);
drop function if exists pgqueue.purge(text, text, text, text, text, text, timestamptz, timestamptz, bigint, integer, text);
