-- advance_flows: these jobs of flows have completed; children whose last open parent was among them run. Returns their
-- queues, and those of callbacks.
--
-- A parent is open until it has ended in a way that lets the child run: it completed, or died or was cancelled and the edge
-- says continue. Each child has a row with the number of its open parents; one statement takes from it what this batch
-- brings, and whoever brings it to 0 releases the child, in this transaction. No sibling is looked at: the last of 10,000
-- parents costs what the first did. (With a row a child to lock, and not one a flow, cancelling and retrying would need an
-- order among children of children.)
--
-- Moves blocked → pending, scheduled; the rest see release_children. Locks the flows, the nodes, the children; the caller
-- holds no lock that comes after these: see lock_flows. Raises nothing.
-- Called by complete, complete_and_claim; not for users.
create or replace function pgqueue.advance_flows(p_flow_ids bigint[], p_ids bigint[], p_results jsonb[]) returns text[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ended    bigint[];
  v_ready    bigint[];
  v_ids      bigint[];
  v_outcomes text[];
  v_freed    text[];
begin
  if exists (select 1 from unnest(p_flow_ids) u where u <> p_flow_ids[1]) then
    perform 1 from pgqueue.flow f where f.id = any (p_flow_ids) order by f.id for update;
  end if;
  with counted as (
    update pgqueue.flow f set completed = f.completed + c.n,
      ended_at = case when f.completed + f.dead + f.cancelled + c.n = f.total then clock_timestamp() end
    from (select u, count(*)::integer as n from unnest(p_flow_ids) u group by u) c where f.id = c.u
    returning f.id, f.ended_at)
  select array_agg(c.id) into v_ended from counted c where c.ended_at is not null;

  with edge as materialized (
    select u.id, e.child_id from unnest(p_ids) u (id) join pgqueue.flow_edge e on e.parent_id between u.id and u.id
  ), ended as (
    -- Those without children need not remember what they returned.
    update pgqueue.flow_node n set outcome = 'completed', result = case when u.id in (select e.id from edge e) then u.result end
    from unnest(p_ids, p_results) u (id, result) where n.job_id between u.id and u.id
  ), counted as (
    update pgqueue.flow_node c set open_parents = c.open_parents - t.parents
    from (select e.child_id, count(*)::integer as parents from edge e group by e.child_id) t
    where c.job_id between t.child_id and t.child_id and c.open_parents > 0
    returning c.job_id, c.open_parents, c.outcome)
  select array_agg(c.job_id) into v_ready from counted c where c.open_parents = 0 and c.outcome is null;

  if v_ready is not null then
    select array_agg(r.id) filter (where r.id is not null), array_agg(r.outcome) filter (where r.id is not null),
           array_agg(r.queue) filter (where r.id is null)
      into v_ids, v_outcomes, v_freed from pgqueue.release_children(v_ready) r;
    if v_ids is not null then perform pgqueue.stop_flows(v_ids, v_outcomes); end if;
  end if;
  if v_ended is not null then v_freed := v_freed || pgqueue.end_flows(v_ended); end if;
  return v_freed;
end
$$;
comment on function pgqueue.advance_flows is 'Jobs of flows have completed: releases what waits for them. Not for users.';
