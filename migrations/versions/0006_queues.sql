-- Both are added without touching a row: now() is evaluated once.
alter table pgqueue.queue add column looked_at timestamptz not null default now(), add column unused_since timestamptz;
comment on column pgqueue.queue.looked_at is 'When sweep() last looked whether anybody uses the queue.';
comment on column pgqueue.queue.unused_since is 'Since when sweep() has found neither job nor worker nor setting; after 30 days it forgets the queue.';

create table pgqueue.queue_gone (
  id                  bigint primary key generated always as identity,
  gone_at             timestamptz not null,
  seen_xid            xid8,
  queue_id            integer,
  queue               text not null
);
comment on table  pgqueue.queue_gone is 'Queues that were deleted a short time ago: transactions may be open that believe they exist. See drop_queue().';
comment on column pgqueue.queue_gone.id is 'Given by PostgreSQL.';
comment on column pgqueue.queue_gone.gone_at is 'When it was deleted.';
comment on column pgqueue.queue_gone.seen_xid is 'No transaction before this one is open any more: then nobody is left that has seen the queue.';
comment on column pgqueue.queue_gone.queue_id is 'Names its sequences, which go last.';
comment on column pgqueue.queue_gone.queue is 'The queue.';
