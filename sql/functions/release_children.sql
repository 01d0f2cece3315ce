-- release_children: no parent of these jobs is open any more: they become jobs like any other. Those that do not, because their
-- flow was cancelled or what they were to get from their parents is too big, end here; they are returned, and the queues of the
-- others, in rows of their own.
--
-- Moves blocked → pending; → scheduled, if run_at or run_in say later; → cancelled; → dead. Locks the rows, waiting; the
-- caller has locked the flows. Raises nothing.
-- Called by advance_flows, stop_flows; not for users.
create or replace function pgqueue.release_children(p_ids bigint[]) returns table (id bigint, outcome text, queue text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  c_most      constant bigint := 16777216;  -- bytes of results as arguments of one job
  v_now       timestamptz := clock_timestamp();
  v_free      bigint[];
  v_big       bigint[];
  v_cancelled bigint[];
  v_reasons   text[];
  v_queue     text;
  v_priority  smallint;
  v_n         integer;
  v_came      regclass;
begin
  select array_agg(n.job_id order by n.job_id) filter (where f.cancelled_at is null and not b.too_big),
         array_agg(n.job_id) filter (where f.cancelled_at is null and b.too_big),
         array_agg(n.job_id) filter (where f.cancelled_at is not null),
         array_agg(f.cancel_reason) filter (where f.cancelled_at is not null)
    into v_free, v_big, v_cancelled, v_reasons
    -- Lateral, limit 1: a probe for each. As a join PostgreSQL 18 read the nodes in the order that the aggregate likes, and all
    -- ids for each of them: 12,000 took 10 s.
    from unnest(p_ids) u (id) cross join lateral (select * from pgqueue.flow_node n where n.job_id = u.id limit 1) n
    cross join lateral (select * from pgqueue.flow f where f.id = n.flow_id limit 1) f
    cross join lateral (select case when n.fills is null then false else coalesce((
      select sum(octet_length(p.result::text)) > c_most from pgqueue.flow_edge e join pgqueue.flow_node p on p.job_id = e.parent_id
      where e.child_id = n.job_id), false) end as too_big) b;

  for v_queue, v_priority, v_n in
    with freed as (
      update pgqueue.job_live j set waits_for = null, run_at = greatest(j.run_at, v_now + t.run_in),
        status = case when greatest(j.run_at, v_now + t.run_in) > v_now then 'scheduled' else 'pending' end,
        rank_at = greatest(j.run_at, v_now + t.run_in, v_now + t.nth * interval '1 microsecond'),
        payload = case when t.fills is null then j.payload else pgqueue.fill_payload(j.payload, j.id, t.fills) end
      from (select u.id, u.nth, n.fills, n.run_in
            from unnest(v_free) with ordinality u (id, nth) join pgqueue.flow_node n on n.job_id between u.id and u.id) t
      where j.id between t.id and t.id and coalesce(j.waits_for, '') = 'parents'  -- as in cancel_waiting
      returning j.queue, j.priority)
    select f.queue, f.priority, count(*) from freed f group by f.queue, f.priority order by f.queue, f.priority
  loop
    perform pgqueue.ensure_lane(v_queue, v_priority);
    select q.came into v_came from pgqueue.queue q where q.queue = v_queue and q.max_depth is not null;
    if v_came is not null then perform count(nextval(v_came)) from generate_series(1, v_n); end if;
    perform pgqueue.wake(v_queue);
    queue := v_queue;
    return next;
  end loop;
  queue := null;

  if v_cancelled is not null then
    return query select u, 'cancelled', null::text from unnest(pgqueue.cancel_waiting(v_cancelled, 'Cancelled', v_reasons)) u;
  end if;
  if v_big is not null then
    perform pgqueue.finish(u, 'dead', 'ResultsTooBig', format('the results of its parents are more than %s bytes of arguments', c_most)) from unnest(v_big) u;
    return query select u, 'dead', null::text from unnest(v_big) u;
  end if;
  -- What cancel_waiting() took is no longer counted as blocked.
  update pgqueue.flow f set blocked = f.blocked - c.n
    from (select n.flow_id, count(*) as n from unnest(v_free || v_big) u (id) cross join lateral (
          select n.flow_id from pgqueue.flow_node n where n.job_id = u.id limit 1) n group by n.flow_id) c
    where f.id = c.flow_id;
end
$$;
comment on function pgqueue.release_children is 'Jobs whose parents have all ended can run. Not for users.';
