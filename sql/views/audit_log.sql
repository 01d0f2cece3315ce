-- audit_log: who did what by the web page.
create or replace view pgqueue.audit_log as
select a.id, a.at, a.actor, a.address, a.login, a.action, a.target, a.detail from pgqueue.audit a order by a.id desc;
comment on view pgqueue.audit_log is 'Who did what by the web page, the latest first.';
comment on column pgqueue.audit_log.id is 'Counts up.';
comment on column pgqueue.audit_log.at is 'When.';
comment on column pgqueue.audit_log.actor is 'Who, as the page knows them.';
comment on column pgqueue.audit_log.address is 'From where.';
comment on column pgqueue.audit_log.login is 'By which login of the database.';
comment on column pgqueue.audit_log.action is 'What was done.';
comment on column pgqueue.audit_log.target is 'To what: a job, queue, task, worker, recurring job, or a search.';
comment on column pgqueue.audit_log.detail is 'Reason, options and counts; never a payload.';
