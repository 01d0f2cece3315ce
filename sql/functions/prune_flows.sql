-- prune_flows: removes flows that have ended and whose jobs have gone. And cancels what waits for a dead or cancelled job that
-- is gone: nobody can retry it any more.
--
-- Moves blocked → cancelled. Locks flows, skipping those that others hold. Raises nothing.
-- Called by prune, purge (p_gone: these are gone now, and their flows locked); not for users.
create or replace function pgqueue.prune_flows(p_limit integer, p_gone bigint[] default '{}') returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_node record;
  v_ids  bigint[];
  v_n    integer;
  v_gone integer := 0;
begin
  update pgqueue.flow_node n set gone_at = v_now where n.job_id = any (p_gone) and n.gone_at > v_now;
  for v_node in
    select n.job_id, n.name from pgqueue.flow_node n join pgqueue.flow f on f.id = n.flow_id
    where n.gone_at <= v_now order by f.id, n.job_id limit p_limit for update of f skip locked
  loop
    v_ids := array(select e.child_id from pgqueue.flow_edge e join pgqueue.flow_node c on c.job_id = e.child_id
                   where e.parent_id = v_node.job_id and e.on_death = 'wait' and c.outcome is null and c.open_parents > 0 order by 1 limit p_limit);
    if cardinality(v_ids) < p_limit then update pgqueue.flow_node n set gone_at = null where n.job_id = v_node.job_id; end if;
    continue when cardinality(v_ids) = 0;
    v_ids := pgqueue.cancel_waiting(v_ids, 'Stopped', array_fill(
      format('its parent %s (job %s) was dead, and has been removed', v_node.name, v_node.job_id), array[cardinality(v_ids)]));
    perform pgqueue.stop_flows(v_ids, array_fill('cancelled'::text, array[cardinality(v_ids)])) where cardinality(v_ids) > 0;
  end loop;

  for v_node in select f.id, f.prune_at from pgqueue.flow f where f.prune_at <= v_now order by f.prune_at limit 1000 for update skip locked loop
    exit when v_gone >= p_limit;
    if exists (select 1 from pgqueue.flow_node n where n.flow_id = v_node.id and exists (select 1 from pgqueue.job j where j.id = n.job_id)) then
      update pgqueue.flow f set prune_at = v_now + interval '1 day' where f.id = v_node.id;
      continue;
    end if;
    v_ids := array(select n.job_id from pgqueue.flow_node n where n.flow_id = v_node.id limit p_limit);
    delete from pgqueue.flow_edge e where e.parent_id = any (v_ids);
    delete from pgqueue.flow_node n where n.job_id = any (v_ids);
    get diagnostics v_n = row_count;
    v_gone := v_gone + v_n;
    if v_n < p_limit then delete from pgqueue.flow f where f.id = v_node.id; end if;
  end loop;
  return v_gone;
end
$$;
comment on function pgqueue.prune_flows is 'Removes flows whose jobs have gone. Not for users.';
