-- stop_flows: these jobs of flows have died or were cancelled; children run all the same, go on waiting, or are cancelled too.
--
-- Where an edge says stop the child is cancelled, and so on: a generation at a time, at most 10,000 jobs a call. What is
-- left then is noted (owes), and sweep_flows() goes on; it passes those as p_owing.
--
-- Moves blocked → cancelled, pending or scheduled. Locks as advance_flows. Raises nothing.
-- Called by leave_flows, advance_flows, cancel_flow_jobs, sweep_flows, prune_flows; not for users.
create or replace function pgqueue.stop_flows(p_ids bigint[], p_outcomes text[], p_owing bigint[] default '{}') returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ids      bigint[] := p_ids;
  v_outcomes text[] := p_outcomes;
  v_dying    bigint[] := p_owing;  -- whose children have still to be told
  v_budget   integer := 10000;
  v_ended    bigint[];
  v_died     bigint[];
  v_ready    bigint[];
  v_stopped  bigint[];
begin
  if cardinality(pgqueue.lock_flows(p_ids || p_owing)) = 0 then return; end if;
  loop
    with ended as (
      update pgqueue.flow_node n set outcome = u.outcome from unnest(v_ids, v_outcomes) u (id, outcome) where n.job_id between u.id and u.id
      returning n.flow_id, n.outcome
    ), counts as (
      select e.flow_id, count(*) filter (where e.outcome = 'dead') as dead, count(*) filter (where e.outcome = 'cancelled') as cancelled
      from ended e group by e.flow_id
    ), counted as (
      update pgqueue.flow f set dead = f.dead + c.dead, cancelled = f.cancelled + c.cancelled,
        ended_at = case when f.completed + f.dead + f.cancelled + c.dead + c.cancelled = f.total then clock_timestamp() end
      from counts c where f.id = c.flow_id
      returning f.id, f.ended_at, c.dead > 0 and f.dead = c.dead and f.on_dead is not null as first_death)
    select array_agg(c.id) filter (where c.ended_at is not null), array_agg(c.id) filter (where c.first_death)
      into v_ended, v_died from counted c;
    if v_died is not null then perform pgqueue.call_back(v_died, 'on_dead'); end if;

    with counted as (
      update pgqueue.flow_node c set open_parents = c.open_parents - t.parents
      from (select e.child_id, count(*)::integer as parents from unnest(v_ids) u (id)
            join pgqueue.flow_edge e on e.parent_id between u.id and u.id and e.on_death = 'continue' group by e.child_id) t
      where c.job_id between t.child_id and t.child_id and c.open_parents > 0
      returning c.job_id, c.open_parents, c.outcome)
    select array_agg(c.job_id) into v_ready from counted c where c.open_parents = 0 and c.outcome is null;

    v_dying := v_dying || v_ids;
    v_ids := '{}';
    v_outcomes := '{}';
    if v_ready is not null then
      select coalesce(array_agg(r.id), '{}'), coalesce(array_agg(r.outcome), '{}') into v_ids, v_outcomes from pgqueue.release_children(v_ready) r
        where r.id is not null;
    end if;
    if v_budget > 0 then
      v_stopped := pgqueue.stop_children(v_dying, v_budget);
      v_budget := v_budget - cardinality(v_stopped);
      if v_budget > 0 then v_dying := '{}'; end if;
      v_ids := v_ids || v_stopped;
      v_outcomes := v_outcomes || array_fill('cancelled'::text, array[cardinality(v_stopped)]);
    else
      update pgqueue.flow_node n set owes = true where n.job_id = any (v_dying);
      v_dying := '{}';
    end if;
    if v_ended is not null then perform pgqueue.end_flows(v_ended); end if;
    exit when cardinality(v_ids) = 0 and cardinality(v_dying) = 0;
  end loop;
end
$$;
comment on function pgqueue.stop_flows is 'Jobs of flows have died or were cancelled: tells what waits for them. Not for users.';
