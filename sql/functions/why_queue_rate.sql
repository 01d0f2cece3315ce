-- why_queue_rate: the rate of its queue lets nothing start now.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_queue_rate(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('scheduled', 'running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'queue_rate', format('queue %s may start %s: the next in %s', q.queue, pgqueue.rate_in_words(q.rate, q.rate_seconds),
             pgqueue.in_words(t.next_at - clock_timestamp())),
           format('pgqueue queues set %s rate=%s/%ss', q.queue, 2 * q.rate::bigint, q.rate_seconds)
    from pgqueue.queue q join pgqueue.queue_gate g on g.queue = q.queue
    cross join lateral pgqueue.free_tokens(g.full_at, clock_timestamp(), q.rate, q.rate_seconds, q.rate_burst) t
    where q.queue = p_job.queue and q.rate is not null and t.tokens < 1;
end
$$;
comment on function pgqueue.why_queue_rate is 'Reason: the rate of its queue. Not for users.';
