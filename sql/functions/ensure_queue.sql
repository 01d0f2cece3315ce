-- ensure_queue: gives a queue its row, and the sequence that wake() needs. enqueue() does not call it: the first
-- enqueue of a long transaction must not make others wait.
--
-- Moves nothing. Locks the new row; waits for a transaction that creates the same queue. Raises PQ001 for a bad name.
-- Called by register_worker, set_queue, pause, sweep; not for users.
create or replace function pgqueue.ensure_queue(p_queue text) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id integer;
begin
  if exists (select 1 from pgqueue.queue q where q.queue = p_queue and q.wake is not null) then return; end if;
  if p_queue is null or p_queue !~ '^[A-Za-z0-9_.:-]{1,128}$' then
    raise exception using errcode = 'PQ001',
      message = format('bad queue name %s: use 1 to 128 of A-Z a-z 0-9 _ . : -', coalesce(quote_literal(left(p_queue, 40)), 'null'));
  end if;
  perform pg_advisory_xact_lock(hashtextextended('pgqueue.queue:' || p_queue, 0));
  insert into pgqueue.queue (queue) values (p_queue) on conflict (queue) do nothing;
  select q.id into v_id from pgqueue.queue q where q.queue = p_queue and q.wake is null for update;
  if found then
    -- Unlogged: after a crash it starts anew, which at worst costs one notification.
    execute format('create unlogged sequence if not exists pgqueue.wake_%s minvalue 0 start 0', v_id);
    update pgqueue.queue q set wake = format('pgqueue.wake_%s', v_id)::regclass where q.id = v_id;
  end if;
end
$$;
comment on function pgqueue.ensure_queue is 'Gives a queue its row. Not for users.';
