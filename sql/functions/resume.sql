-- resume: ends a pause of the queue, or what a handler that was rate limited brought upon it (see throttle). False: there was
-- neither.
--
-- Moves nothing. Locks the queue's row, then its gate: in the order of the sweep. Raises nothing.
-- Called by operators.
create or replace function pgqueue.resume(queue text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_paused boolean;
begin
  perform 1 from pgqueue.queue q where q.queue = resume.queue for update;
  update pgqueue.queue q set paused_at = null, paused_until = null, paused_reason = null
    where q.queue = resume.queue and q.paused_at is not null;
  v_paused := found;
  update pgqueue.queue_gate g set not_before = '-infinity' where g.queue = resume.queue and g.not_before > clock_timestamp();
  if found then
    perform pgqueue.regate(resume.queue);
  elsif not v_paused then
    return false;
  end if;
  perform pgqueue.wake(resume.queue);
  return true;
end
$$;
comment on function pgqueue.resume is 'Ends the pause of a queue, or its throttle.';
