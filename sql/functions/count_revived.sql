-- count_revived: these jobs of flows, dead or cancelled until now, are live again: so say their nodes, and their flows count
-- them. Once for all of them: a row that one transaction changes 10,000 times has 10,000 versions, and each of the following
-- reads walks over them.
--
-- Moves nothing. Locks the nodes; the caller has locked the flows. Raises nothing.
-- Called by resume_children; not for users.
create or replace function pgqueue.count_revived(p_ids bigint[]) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  with was as materialized (
    select n.job_id, n.flow_id, n.outcome, n.open_parents from unnest(p_ids) u (id)
    cross join lateral (select * from pgqueue.flow_node n where n.job_id = u.id limit 1) n  -- as in release_children
    where n.outcome in ('dead', 'cancelled')
  ), live as (
    update pgqueue.flow_node n set outcome = null, stopped_by = null, gone_at = null
    from was w where n.job_id between w.job_id and w.job_id
  )
  update pgqueue.flow f set dead = f.dead - c.dead, cancelled = f.cancelled - c.cancelled, blocked = f.blocked + c.blocked,
    ended_at = null, prune_at = null, failed = false, cancelled_at = null, cancel_reason = null
  from (select w.flow_id, count(*) filter (where w.outcome = 'dead') as dead, count(*) filter (where w.outcome = 'cancelled') as cancelled,
               count(*) filter (where w.open_parents > 0) as blocked
        from was w group by w.flow_id) c
  where f.id = c.flow_id;
end
$$;
comment on function pgqueue.count_revived is 'Jobs of flows are live again. Not for users.';
