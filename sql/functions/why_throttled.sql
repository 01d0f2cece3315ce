-- why_throttled: a handler said RateLimited, so nothing of its queue starts for a while.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_throttled(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'throttled', format('a handler was rate limited: nothing of queue %s starts in the next %s', g.queue, pgqueue.in_words(g.not_before - clock_timestamp())),
           format('pgqueue queues resume %s', g.queue)
    from pgqueue.queue_gate g where g.queue = p_job.queue and g.not_before > clock_timestamp();
end
$$;
comment on function pgqueue.why_throttled is 'Reason: a handler was rate limited. Not for users.';
