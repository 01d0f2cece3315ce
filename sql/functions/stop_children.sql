-- stop_children: these jobs died or were cancelled: children that wait and should stop then are cancelled, at most p_limit of
-- them; returned, so that their children can be told. For those that go on waiting it is noted how long a retry is possible.
--
-- A stopped job is kept as long as the dead one: a retry of that one brings it back.
--
-- Moves blocked → cancelled. Locks the rows; the caller has locked the flows. Raises nothing.
-- Called by stop_flows; not for users.
create or replace function pgqueue.stop_children(p_parents bigint[], p_limit integer) returns bigint[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_ids     bigint[];
  v_by      bigint[];
  v_reasons text[];
  v_until   timestamptz[];
  v_stopped bigint[] := '{}';
begin
  with hit as (
    select distinct on (e.child_id) e.child_id, e.parent_id
    from unnest(p_parents) u (id) join pgqueue.flow_edge e on e.parent_id = u.id and e.on_death = 'stop'
    join pgqueue.flow_node c on c.job_id = e.child_id and c.outcome is null and c.open_parents > 0
    join pgqueue.flow_node p on p.job_id = u.id and p.outcome in ('dead', 'cancelled')
    order by e.child_id, e.parent_id limit p_limit
  ), reason as (
    select p.job_id, j.prune_at, left(format('its parent %s (job %s) %s', p.name, p.job_id,
           case p.outcome when 'dead' then 'died' else 'was cancelled' end || coalesce(': ' || j.error, '')), 500) as text
    from (select distinct h.parent_id from hit h) h join pgqueue.flow_node p on p.job_id = h.parent_id
    left join pgqueue.job j on j.id = h.parent_id and j.status in ('dead', 'cancelled'))
  select array_agg(h.child_id), array_agg(h.parent_id), array_agg(r.text), array_agg(r.prune_at) into v_ids, v_by, v_reasons, v_until
    from hit h join reason r on r.job_id = h.parent_id;
  if v_ids is not null then
    v_stopped := pgqueue.cancel_waiting(v_ids, 'Stopped', v_reasons, v_until);
    update pgqueue.flow_node n set stopped_by = u.by from unnest(v_ids, v_by) u (id, by) where n.job_id = u.id;
  end if;
  update pgqueue.flow_node p set gone_at = coalesce(
      (select j.prune_at from pgqueue.job j where j.id = p.job_id and j.status in ('dead', 'cancelled')), clock_timestamp())
    where p.job_id = any (p_parents) and p.outcome in ('dead', 'cancelled') and exists (
      select 1 from pgqueue.flow_edge e join pgqueue.flow_node c on c.job_id = e.child_id
      where e.parent_id = p.job_id and e.on_death = 'wait' and c.outcome is null and c.open_parents > 0);
  return v_stopped;
end
$$;
comment on function pgqueue.stop_children is 'Cancels the children that should not run after a death. Not for users.';
