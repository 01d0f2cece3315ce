-- ensure_lane: makes sure that the claim will look at this priority of this queue. Waits for nobody: see lane.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by enqueue, enqueue_many, retry.
create or replace function pgqueue.ensure_lane(p_queue text, p_priority integer) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
begin
  if not exists (select 1 from pgqueue.lane l where l.queue = p_queue and l.priority = p_priority::smallint) then
    insert into pgqueue.lane (queue, priority) values (p_queue, p_priority);
  end if;
end
$$;
comment on function pgqueue.ensure_lane is 'Makes sure that a lane exists.';
