-- extend_flow: a job of a flow adds jobs to it, in the transaction that completes it, before complete(). They run after it; with
-- p_hold all that was to run after it runs after them: a fan-out whose size nobody knew before.
--
-- The list is that of enqueue_flow(). Returns the new ids; null: refused, the lease is gone.
--
-- Moves → pending, scheduled or blocked. Locks the job's row, then the flow. Raises PQ001 as enqueue_flow, and when the job is in
-- no flow; PQ004, PQ006, PQ007.
-- Called by workers.
create or replace function pgqueue.extend_flow(p_worker_id bigint, p_id bigint, p_token integer, p_jobs jsonb, p_hold boolean default false)
returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_node  pgqueue.flow_node%rowtype;
  v_is    record;
  v_added record;
  v_last  bigint[];
begin
  perform 1 from pgqueue.lock_claimed(p_worker_id, array[p_id], array[p_token]);
  if not found then return null; end if;
  perform pgqueue.lock_flows(array[p_id]);
  select n.* into v_node from pgqueue.flow_node n where n.job_id = p_id;
  if not found then raise exception using errcode = 'PQ001', message = format('job %s is in no flow', p_id); end if;
  select c.names, c.children, c.parents, c.on_deaths into v_is from pgqueue.check_flow(p_jobs, v_node.name) c;
  if exists (select 1 from pgqueue.flow_node n where n.flow_id = v_node.flow_id and n.name = any (v_is.names)) then
    raise exception using errcode = 'PQ001', message = format('flow %s has a job named %s already', v_node.flow_id,
      (select min(n.name) from pgqueue.flow_node n where n.flow_id = v_node.flow_id and n.name = any (v_is.names)));
  end if;
  select a.ids, a.blocked into v_added
    from pgqueue.add_flow_jobs(v_node.flow_id, p_jobs, v_is.names, v_is.children, v_is.parents, v_is.on_deaths, p_id) a;
  update pgqueue.flow f set total = f.total + cardinality(v_added.ids), blocked = f.blocked + v_added.blocked where f.id = v_node.flow_id;
  if p_hold then
    v_last := array(select v_added.ids[l.g] from (
      select g from generate_series(1, cardinality(v_added.ids)) g except select u from unnest(v_is.parents) u) l (g) order by 1);
    with held as (
      update pgqueue.flow_node c set open_parents = c.open_parents + cardinality(v_last)
      from pgqueue.flow_edge e where e.parent_id = p_id and c.job_id = e.child_id and c.open_parents > 0 and c.job_id < v_added.ids[1]
      returning c.job_id, e.on_death)
    insert into pgqueue.flow_edge (parent_id, child_id, position, on_death)
      select u.id, h.job_id, u.nth + coalesce((select max(e.position) from pgqueue.flow_edge e where e.child_id = h.job_id), 0), h.on_death
      from held h cross join unnest(v_last) with ordinality u (id, nth);
  end if;
  return v_added.ids;
end
$$;
comment on function pgqueue.extend_flow is 'A completing job adds jobs to its flow.';
