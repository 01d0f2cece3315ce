-- Flows: jobs that run after others.

alter table pgqueue.job add column flow_id bigint;
comment on column pgqueue.job.flow_id is 'The flow that it is a job of; null: of none, and its end is nobody else''s business.';
comment on column pgqueue.job.waits_for is 'What a blocked job waits for: parents (of its flow), group (a slot or its turn), task (paused, or its circuit is open).';
-- Nothing waits for parents yet, and yet it reads the whole leaf once: a second for a million live jobs.
create index job_live_child on pgqueue.job_live (queue) where waits_for = 'parents';

-- Its row is the lock of everything that jobs of the flow do to each other. The counts are kept once a batch, under that
-- lock: so the last one is known to be the last, and nobody counts siblings.
create table pgqueue.flow (
  id                  bigint primary key generated always as identity,
  created_at          timestamptz not null,
  ended_at            timestamptz,
  prune_at            timestamptz,
  cancelled_at        timestamptz,
  done_at             timestamptz,
  total               integer not null,
  blocked             integer not null,
  completed           integer not null default 0,
  dead                integer not null default 0,
  cancelled           integer not null default 0,
  failed              boolean not null default false,
  name                text check (length(name) between 1 and 200),
  cancel_reason       text,
  on_done             jsonb,
  on_dead             jsonb
) with (fillfactor = 20);
create index flow_prune     on pgqueue.flow (prune_at) where prune_at is not null;
create index flow_cancelled on pgqueue.flow (id) where cancelled_at is not null and ended_at is null;
comment on table  pgqueue.flow is 'Jobs linked by "runs after". Made by enqueue_flow(), goes when its jobs have gone.';
comment on column pgqueue.flow.id is 'Given by enqueue_flow().';
comment on column pgqueue.flow.created_at is 'When it was enqueued.';
comment on column pgqueue.flow.ended_at is 'When its last job ended; null while any is live.';
comment on column pgqueue.flow.prune_at is 'When an ended flow may be removed.';
comment on column pgqueue.flow.cancelled_at is 'When somebody cancelled it as a whole; null again after a retry of one of its jobs.';
comment on column pgqueue.flow.done_at is 'When all had first ended well; on_done was enqueued then.';
comment on column pgqueue.flow.total is 'How many jobs it has.';
comment on column pgqueue.flow.blocked is 'How many of them wait for their parents.';
comment on column pgqueue.flow.completed is 'How many completed.';
comment on column pgqueue.flow.dead is 'How many are dead.';
comment on column pgqueue.flow.cancelled is 'How many were cancelled.';
comment on column pgqueue.flow.failed is 'It has ended, and something died or was cancelled that was not to be passed over (continue).';
comment on column pgqueue.flow.name is 'What people call it.';
comment on column pgqueue.flow.cancel_reason is 'Why it was cancelled.';
comment on column pgqueue.flow.on_done is 'The job to enqueue when all has ended well.';
comment on column pgqueue.flow.on_dead is 'The job to enqueue when a first job dies.';

-- Written twice or so, except the row of a job with many parents: that one changes once a batch of them, in place.
create table pgqueue.flow_node (
  job_id              bigint  primary key,
  flow_id             bigint  not null,
  open_parents        integer not null,
  owes                boolean not null default false,
  stopped_by          bigint,
  gone_at             timestamptz,
  run_in              interval,
  name                text    not null,
  outcome             text,
  fills               jsonb,
  result              jsonb
) with (fillfactor = 50);
create unique index flow_node_name on pgqueue.flow_node (flow_id, name);
create index flow_node_owes on pgqueue.flow_node (flow_id) where owes;
create index flow_node_gone on pgqueue.flow_node (gone_at) where gone_at is not null;
comment on table  pgqueue.flow_node is 'A job of a flow: what it waits for, and what its children need to know of its end, even when the job itself is gone.';
comment on column pgqueue.flow_node.job_id is 'The job.';
comment on column pgqueue.flow_node.flow_id is 'The flow.';
comment on column pgqueue.flow_node.open_parents is 'How many parents have not ended in a way that lets it run; whoever brings this to 0 releases the job, and it stays 0.';
comment on column pgqueue.flow_node.owes is 'It has ended, or was retried, and not all that hangs on it could be told at once: sweep() goes on.';
comment on column pgqueue.flow_node.stopped_by is 'The parent whose end has cancelled it; a retry of that one brings it back.';
comment on column pgqueue.flow_node.gone_at is 'A dead or cancelled job that children wait for can be retried until then.';
comment on column pgqueue.flow_node.run_in is 'Starts no earlier than this after its parents have ended.';
comment on column pgqueue.flow_node.name is 'Its name in the flow.';
comment on column pgqueue.flow_node.outcome is 'completed, dead or cancelled; null while it is live.';
comment on column pgqueue.flow_node.fills is 'Which arguments are results of parents, put in when the job is released.';
comment on column pgqueue.flow_node.result is 'What it returned, if it has children: a copy that outlives the job.';

create table pgqueue.flow_edge (
  parent_id           bigint  not null,
  child_id            bigint  not null,
  position            integer not null,
  on_death            text    not null check (on_death in ('wait', 'stop', 'continue')),
  primary key (parent_id, child_id)
);
create index flow_edge_child on pgqueue.flow_edge (child_id, position);
comment on table  pgqueue.flow_edge is 'The child runs after the parent. Never changed.';
comment on column pgqueue.flow_edge.parent_id is 'The job that runs first.';
comment on column pgqueue.flow_edge.child_id is 'The job that runs after it.';
comment on column pgqueue.flow_edge.position is 'Which of the child''s parents it is.';
comment on column pgqueue.flow_edge.on_death is 'When the parent dies or is cancelled: wait for a retry, stop (the child is cancelled), or continue as if it had completed.';
