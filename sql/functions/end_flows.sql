-- end_flows: the last live job of these flows has ended. Says whether that was well: nothing died or was cancelled, except
-- where every child was to continue. Then on_done is enqueued, once in the life of the flow. Returns the queues of callbacks.
--
-- Moves → pending: the callback. Locks nothing more; the caller has locked the flows. Raises nothing.
-- Called by advance_flows, stop_flows; not for users.
create or replace function pgqueue.end_flows(p_flow_ids bigint[]) returns text[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_keep interval;
  v_done bigint[];
begin
  -- It is not known any more which queues its jobs were of, and what holds for a job may be longer: prune() looks again.
  select greatest(s.retain_dead, s.retain_completed, (select greatest(max(q.retain_dead), max(q.retain_completed)) from pgqueue.queue q))
    into v_keep from pgqueue.setting s;
  update pgqueue.flow f set prune_at = v_now + v_keep, failed = f.cancelled_at is not null or f.dead + f.cancelled > 0 and exists (
      select 1 from pgqueue.flow_node n where n.flow_id = f.id and n.outcome in ('dead', 'cancelled')
        and (not exists (select 1 from pgqueue.flow_edge e where e.parent_id = n.job_id)
             or exists (select 1 from pgqueue.flow_edge e where e.parent_id = n.job_id and e.on_death <> 'continue')))
    where f.id = any (p_flow_ids);
  with done as (
    update pgqueue.flow f set done_at = v_now where f.id = any (p_flow_ids) and not f.failed and f.done_at is null returning f.id, f.on_done)
  select array_agg(d.id) into v_done from done d where d.on_done is not null;
  return case when v_done is not null then pgqueue.call_back(v_done, 'on_done') end;
end
$$;
comment on function pgqueue.end_flows is 'The last live job of these flows has ended. Not for users.';
