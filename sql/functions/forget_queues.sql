-- forget_queues: without it every name that was ever enqueued to, misspelled ones too, would keep a row and a sequence.
--
--   queues that for 30 days had no live job, no dead letter, no worker, no recurring job and no settings of their own go.
--     Looked at once an hour, so one that was used only in between may go too: it loses nothing, and comes back when used;
--   of those that are gone (see drop_queue), jobs that a transaction committed late get lanes; when every transaction has
--     ended that could still do so, their sequences are dropped.
--
-- Moves nothing. Locks what it removes; a lock that does not come within 50 ms is left for the next time. Raises nothing.
-- Called by sweep, one at a time; not for users.
create or replace function pgqueue.forget_queues(p_limit integer default 20) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '50ms'
as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_queue pgqueue.queue%rowtype;
  v_gone  pgqueue.queue_gone%rowtype;
  v_used  boolean;
  v_left  integer := p_limit;
  v_over  boolean;
begin
  for v_queue in select q.* from pgqueue.queue q where q.looked_at < v_now - interval '1 hour'
                 order by q.looked_at limit p_limit for update skip locked loop
    -- What is set differs from what a queue has that nobody has touched.
    v_used := to_jsonb(v_queue) - '{queue,id,wake,came,went,created_at,looked_at,unused_since}'::text[]
                <> to_jsonb(jsonb_populate_record(null::pgqueue.queue,
                     '{"fair": false, "group_on_retry": "hold", "gated": false, "grouped": false}'))
                   - '{queue,id,wake,came,went,created_at,looked_at,unused_since}'::text[]
      or exists (select 1 from pgqueue.job_dead j where j.queue = v_queue.queue)
      or exists (select 1 from pgqueue.queue_group g where g.queue = v_queue.queue)
      or pgqueue.queue_use(v_queue.queue) is not null;
    update pgqueue.queue q set looked_at = v_now, unused_since = case when not v_used then coalesce(q.unused_since, v_now) end
      where q.queue = v_queue.queue;
    if not v_used and v_queue.unused_since < v_now - interval '30 days'
       and pg_try_advisory_xact_lock(hashtextextended('pgqueue.queue:' || v_queue.queue, 0)) then
      begin
        perform pgqueue.drop_queue(v_queue.queue);
      exception when lock_not_available or deadlock_detected then
        null;  -- in an hour
      end;
    end if;
  end loop;

  for v_gone in select g.* from pgqueue.queue_gone g order by g.gone_at for update skip locked loop
    -- Asked before the search begins, so that the search sees all that they left. An enqueue() that was under way has its
    -- transaction id within the first minute; one under an older snapshot of REPEATABLE READ gets a day.
    v_over := v_gone.seen_xid <= pg_snapshot_xmin(pg_current_snapshot()) and v_gone.gone_at < v_now - interval '1 day';
    if exists (select 1 from pgqueue.job_live j where j.queue = v_gone.queue and j.status = 'pending')
       or exists (select 1 from pgqueue.job_live j where j.queue = v_gone.queue and j.status = 'scheduled') then
      perform pgqueue.ensure_lane(v_gone.queue, p.priority) from (
        select p as priority from generate_series(-100, 100) p
          where exists (select 1 from pgqueue.job_live j where j.queue = v_gone.queue and j.priority = p and j.status = 'pending')
        union
        (select j.priority from pgqueue.job_live j where j.queue = v_gone.queue and j.status = 'scheduled' order by j.run_at limit 1000)) p;
    end if;
    if v_gone.seen_xid is null and v_gone.gone_at < v_now - interval '1 minute' then
      update pgqueue.queue_gone g set seen_xid = pg_snapshot_xmax(pg_current_snapshot()) where g.id = v_gone.id;
    elsif v_over and v_left > 0 then
      v_left := v_left - 1;
      begin
        if v_gone.queue_id is not null then
          execute format('drop sequence if exists pgqueue.wake_%1$s, pgqueue.came_%1$s, pgqueue.went_%1$s', v_gone.queue_id);
        end if;
        delete from pgqueue.queue_gone g where g.id = v_gone.id;
      exception when lock_not_available or deadlock_detected then
        null;
      end;
    end if;
  end loop;
end
$$;
comment on function pgqueue.forget_queues is 'Forgets queues that nobody has used for 30 days. Not for users.';
