-- sweep_flows: what of flows could not be done at once, or is nobody else's:
--
--   flows that were cancelled while they have live jobs: those that were busy then, or too many;
--   nodes that owe their children the news of their end, or of their retry;
--   jobs that wait for their parents, and whose expires_at has come.
--
-- Moves blocked, scheduled, pending → cancelled; cancelled → blocked. Locks flows, skipping those that others hold. Raises
-- nothing. Returns how many jobs have expired.
-- Called by sweep; not for users.
create or replace function pgqueue.sweep_flows(p_limit integer) returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_flow  bigint;
  v_ended bigint[];
  v_live  bigint[];
  v_ids   bigint[];
  v_n     integer := 0;
begin
  for v_flow in select f.id from pgqueue.flow f where f.cancelled_at is not null and f.ended_at is null
                order by f.id limit 100 for update skip locked loop
    perform pgqueue.cancel_flow_jobs(v_flow, p_limit);
  end loop;

  for v_flow in select f.id from (select distinct n.flow_id from pgqueue.flow_node n where n.owes limit 100) o
                join pgqueue.flow f on f.id = o.flow_id order by f.id for update of f skip locked loop
    with told as (update pgqueue.flow_node n set owes = false where n.flow_id = v_flow and n.owes returning n.job_id, n.outcome)
    select array_agg(t.job_id) filter (where t.outcome in ('dead', 'cancelled')),
           array_agg(t.job_id) filter (where t.outcome is null or t.outcome = 'completed')
      into v_ended, v_live from told t;
    if v_live is not null then perform pgqueue.resume_children(v_live, p_again => true); end if;
    if v_ended is not null then perform pgqueue.stop_flows('{}', '{}', p_owing => v_ended); end if;
  end loop;

  for v_flow in select f.id from (
                  select distinct j.flow_id from (
                    select s.flow_id from pgqueue.job_live s where s.expires_at <= v_now and s.status <> 'running' and s.waits_for = 'parents'
                    order by s.expires_at limit p_limit) j) d
                join pgqueue.flow f on f.id = d.flow_id order by f.id for update of f skip locked loop
    v_ids := array(select j.id from pgqueue.flow_node n
                   cross join lateral (select * from pgqueue.job_live j where j.id = n.job_id limit 1) j  -- as in release_children
                   where n.flow_id = v_flow and n.outcome is null and j.expires_at <= v_now and j.waits_for = 'parents' limit p_limit);
    v_ids := pgqueue.cancel_waiting(v_ids, 'Expired', array_fill('its parents had not ended before it expired'::text, array[cardinality(v_ids)]));
    v_n := v_n + cardinality(v_ids);
    perform pgqueue.stop_flows(v_ids, array_fill('cancelled'::text, array[cardinality(v_ids)])) where cardinality(v_ids) > 0;
  end loop;
  return v_n;
end
$$;
comment on function pgqueue.sweep_flows is 'Goes on with what of flows could not be done at once. Not for users.';
