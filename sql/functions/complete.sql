-- complete: the handlers succeeded. Returns the ids that were refused: their lease is no longer this worker's.
--
-- Moves running → completed. A job with retain_for 0 leaves no row behind. Its group's next job gets the slot; what runs after it
-- in a flow, and after nothing else that is unfinished, is released.
-- Locks the rows by ascending id, then the groups, then the flows. Raises nothing of its own; 40001 and 40P01 are safe to repeat.
-- Called by workers.
create or replace function pgqueue.complete(p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_results jsonb[] default null)
returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_refused  bigint[];
  v_flows    bigint[];
  v_in_flow  bigint[];
  v_returned jsonb[];
begin
  select c.refused, c.flow_ids, c.in_flow, c.returned into v_refused, v_flows, v_in_flow, v_returned
    from pgqueue.complete_claimed(p_worker_id, p_ids, p_tokens, p_results) c;
  if v_flows is not null then perform pgqueue.advance_flows(v_flows, v_in_flow, v_returned); end if;
  return v_refused;
end
$$;
comment on function pgqueue.complete is 'The handlers succeeded: running → completed. Returns the refused ids.';
