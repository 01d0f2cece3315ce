-- call_back: enqueues the job that a flow has for this event. It is no job of the flow; its meta says which flow it is about.
-- Returns the queues.
--
-- A full queue takes it too: the job that has just ended must not pay for that. A key that is taken means that it is there already.
--
-- Moves → pending or scheduled. Locks its new rows. Raises nothing.
-- Called by stop_flows (on_dead), end_flows (on_done); not for users.
create or replace function pgqueue.call_back(p_flow_ids bigint[], p_event text) returns text[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_id     bigint;
  v_spec   jsonb;
  v_queues text[] := '{}';
begin
  for v_id, v_spec in select f.id, case p_event when 'on_done' then f.on_done else f.on_dead end from pgqueue.flow f
                      where f.id = any (p_flow_ids) order by f.id loop
    perform pgqueue.insert_jobs(jsonb_build_array(v_spec), array[nextval('pgqueue.job_id_seq')], array[null::text], array[0], null, v_id);
    perform pgqueue.ensure_lane(v_spec ->> 'queue', coalesce((v_spec ->> 'priority')::integer, 0));
    perform pgqueue.wake(v_spec ->> 'queue');
    v_queues := v_queues || (v_spec ->> 'queue');
  end loop;
  return v_queues;
end
$$;
comment on function pgqueue.call_back is 'Enqueues the callback of flows. Not for users.';
