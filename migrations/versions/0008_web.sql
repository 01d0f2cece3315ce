create table pgqueue.audit (
  id                  bigint      not null generated always as identity primary key,
  at                  timestamptz not null,
  actor               text        not null,
  address             text,
  login               text        not null,
  action              text        not null,
  target              text,
  detail              jsonb       not null
);
comment on table  pgqueue.audit is 'Who did what by the web page. Nothing removes rows: people make few.';
comment on column pgqueue.audit.id is 'Counts up.';
comment on column pgqueue.audit.at is 'When.';
comment on column pgqueue.audit.actor is 'Who, as the page knows them.';
comment on column pgqueue.audit.address is 'From where.';
comment on column pgqueue.audit.login is 'By which login of the database.';
comment on column pgqueue.audit.action is 'What was done.';
comment on column pgqueue.audit.target is 'To what: a job, queue, task, worker, recurring job, or a search.';
comment on column pgqueue.audit.detail is 'Reason, options and counts; never a payload.';
