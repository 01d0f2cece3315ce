-- throttle: handlers met somebody else's rate limit (RateLimited). Their jobs run later, attempt refunded; and nothing
-- else of the group (of the queue, for a job without one) starts before then: the others would only be told the same.
-- Returns the ids that were refused.
--
-- Moves running → scheduled. Locks the rows by ascending id, then groups and gate. Raises PQ001 as snooze.
-- Called by workers.
create or replace function pgqueue.throttle(p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_delays double precision[])
returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_refused bigint[];
  v_queue   text;
  v_group   text;
  v_delay   double precision;
begin
  v_refused := pgqueue.snooze(p_worker_id, p_ids, p_tokens, p_delays);
  for v_queue, v_group, v_delay in
    select j.queue, j.group_key, max(u.delay) from unnest(p_ids, p_delays) u (id, delay)
    join pgqueue.job j on j.id = u.id where u.id <> all (v_refused) group by j.queue, j.group_key order by j.queue, j.group_key
  loop
    if v_group is null then
      -- In the order of the sweep: first the queue's row, then its gate.
      perform pgqueue.ensure_queue(v_queue);
      perform 1 from pgqueue.queue q where q.queue = v_queue for update;
      insert into pgqueue.queue_gate as g (queue, not_before) values (v_queue, v_now + make_interval(secs => v_delay))
        on conflict (queue) do update set not_before = greatest(g.not_before, excluded.not_before);
    else
      insert into pgqueue.queue_group as g (queue, group_key, not_before) values (v_queue, v_group, v_now + make_interval(secs => v_delay))
        on conflict (queue, group_key) do update set not_before = greatest(g.not_before, excluded.not_before);
    end if;
    perform pgqueue.ensure_queue(v_queue);
    perform pgqueue.regate(v_queue);
  end loop;
  return v_refused;
end
$$;
comment on function pgqueue.throttle is 'Run later, and the rest of the group or queue too: running → scheduled. Returns the refused ids.';
