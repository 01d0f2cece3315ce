-- leave_flows: these jobs of flows may have ended, other than by completing; their children learn of those that have.
--
-- Moves what stop_flows() moves. Locks likewise; called last, after leave_groups(). Raises nothing.
-- Called by fail, release, snooze, cancel, cancel_claimed, sweep; not for users.
create or replace function pgqueue.leave_flows(p_ids bigint[]) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_ids      bigint[];
  v_outcomes text[];
begin
  if cardinality(p_ids) = 0 then return; end if;
  -- A cancelled job with retain_for 0 has left no row.
  select array_agg(u.id), array_agg(case when exists (select 1 from pgqueue.job_dead d where d.id = u.id) then 'dead' else 'cancelled' end)
    into v_ids, v_outcomes
    from unnest(p_ids) u (id) where not exists (select 1 from pgqueue.job_live j where j.id = u.id);
  if v_ids is not null then perform pgqueue.stop_flows(v_ids, v_outcomes); end if;
end
$$;
comment on function pgqueue.leave_flows is 'Jobs of flows may have died or been cancelled. Not for users.';
