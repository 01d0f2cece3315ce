-- look_up_flow: how a flow is doing. No row: there is no such flow, or it has been pruned. See the view flow_status.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by everyone, and again and again by those who wait for its end: it counts nothing.
create or replace function pgqueue.look_up_flow(
  id bigint, out name text, out status text, out total integer, out blocked integer, out completed integer, out dead integer,
  out cancelled integer, out created_at timestamptz, out ended_at timestamptz, out cancel_reason text, out trouble bigint)
returns setof record
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
  return query
    select f.name, f.status, f.total, f.blocked, f.completed, f.dead, f.cancelled, f.created_at, f.ended_at, f.cancel_reason,
           -- The job that it is about, when it cannot go on.
           case when f.status in ('stalled', 'failed') then (
             select n.job_id from pgqueue.flow_node n where n.flow_id = f.id and n.outcome in ('dead', 'cancelled')
             order by n.outcome desc, n.stopped_by is not null, n.job_id limit 1) end
    from pgqueue.flow_status f where f.id = look_up_flow.id;
end
$$;
comment on function pgqueue.look_up_flow is 'How a flow is doing.';
