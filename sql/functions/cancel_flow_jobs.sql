-- cancel_flow_jobs: cancels live jobs of a flow that was cancelled, at most p_limit of each kind; see cancel_flow.
--
-- Whoever reports a job holds it and wants the flow, which we hold: so what does not wait for parents is never waited for. Nor
-- are groups: if somebody has one locked, sweep_limits() passes on the slots that come free here.
--
-- Moves blocked, scheduled, pending → cancelled. Locks them, skipping; the caller has locked the flow. Raises nothing.
-- Called by cancel_flow, sweep_flows; not for users.
create or replace function pgqueue.cancel_flow_jobs(p_flow_id bigint, p_limit integer, out cancelled integer, out asked integer)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_reason text;
  v_ids    bigint[];
  v_open   bigint[];  -- what waits for no parents
  v_queues text[];
  v_groups text[];
  v_queue  text;
  v_worker bigint;
  v_n      integer;
begin
  select f.cancel_reason into v_reason from pgqueue.flow f where f.id = p_flow_id;
  select array_agg(w.id) into v_ids from (
    select n.job_id as id from pgqueue.flow_node n
    where n.flow_id = p_flow_id and n.outcome is null and n.open_parents > 0 limit p_limit) w;
  v_ids := case when v_ids is null then '{}' else
    pgqueue.cancel_waiting(v_ids, 'Cancelled', array_fill(v_reason, array[cardinality(v_ids)])) end;

  v_open := array(select n.job_id from pgqueue.flow_node n where n.flow_id = p_flow_id and n.outcome is null and n.open_parents = 0);
  with held as (
    select j.id, j.queue, j.group_key from pgqueue.job_live j
    where j.id = any (v_open) and j.status <> 'running' and j.waits_for is distinct from 'parents' limit p_limit for update skip locked)
  select v_ids || coalesce(array_agg(h.id), '{}'), array_agg(h.queue) filter (where h.group_key is not null),
         array_agg(h.group_key) filter (where h.group_key is not null)
    into v_ids, v_queues, v_groups from held h;
  perform pgqueue.finish(u, 'cancelled', 'Cancelled', v_reason) from unnest(v_ids) u
    where exists (select 1 from pgqueue.job_live j where j.id = u);
  cancelled := cardinality(v_ids);

  asked := 0;
  for v_worker, v_n in
    with told as (
      update pgqueue.job_live j set cancel_requested_at = clock_timestamp(), error_type = 'Cancelled', error = v_reason
      where j.id = any (array(
        select r.id from pgqueue.job_live r where r.id = any (v_open) and r.status = 'running' and r.cancel_requested_at is null
        for update skip locked))
      returning j.worker_id)
    select t.worker_id, count(*) from told t group by t.worker_id
  loop
    asked := asked + v_n;
    perform pg_notify('pgqueue', 'cancel ' || v_worker);
  end loop;

  if cardinality(v_ids) > 0 then
    perform pgqueue.stop_flows(v_ids, array_fill('cancelled'::text, array[cardinality(v_ids)]));
  end if;
  for v_queue in select distinct u from unnest(v_queues) u join pgqueue.queue q on q.queue = u and q.grouped order by u loop
    if pgqueue.grant_groups(v_queue, pgqueue.lock_groups(v_queue, array(
         select distinct u.g from unnest(v_queues, v_groups) u (q, g) where u.q = v_queue), false)) > 0 then
      perform pgqueue.wake(v_queue);
    end if;
  end loop;
end
$$;
comment on function pgqueue.cancel_flow_jobs is 'Cancels live jobs of a cancelled flow. Not for users.';
