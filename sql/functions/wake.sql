-- wake: tells an idle worker that a queue has work, when there is one.
--
-- NOTIFY takes a lock on the whole cluster at commit: on every enqueue it cost 0.70x with 8 clients, 0.28x with
-- 20 listeners. So the queue's sequence says when a notification is next worth its price: claim() sets it to 0
-- when it leaves a worker idle, a second ahead when there is more than the worker can take; whoever notifies
-- sets it 50 ms ahead. A sequence, because it is shared memory without row locks and without dead rows. It is
-- a hint: a rolled-back notification is made good by polling.
--
-- `set pgqueue.notify = off` (set local, or for a role or a database) leaves it to polling. A transaction that has notified
-- cannot be prepared for a two-phase commit, PostgreSQL says: whoever enqueues in one needs this.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by enqueue, enqueue_many, retry, release, resume.
create or replace function pgqueue.wake(p_queue text) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_wake regclass;
  v_ms   bigint;
begin
  select q.wake into v_wake from pgqueue.queue q where q.queue = p_queue;
  if v_wake is null then return; end if;
  v_ms := extract(epoch from clock_timestamp()) * 1000;
  if coalesce(pg_sequence_last_value(v_wake), 0) <= v_ms
     and coalesce(lower(current_setting('pgqueue.notify', true)), '') not in ('off', 'false', 'no', '0') then
    perform setval(v_wake, v_ms + 50);
    perform pg_notify('pgqueue', p_queue);
  end if;
end
$$;
comment on function pgqueue.wake is 'Notifies an idle worker of the queue, if there is one.';
