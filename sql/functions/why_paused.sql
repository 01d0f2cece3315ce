-- why_paused: its queue is paused.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_paused(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'paused', format('queue %s has been paused for %s%s%s', q.queue, pgqueue.in_words(clock_timestamp() - q.paused_at),
             ' (' || q.paused_reason || ')', case when q.paused_until is not null then ', until ' || q.paused_until end),
           format('pgqueue queues resume %s', q.queue)
    from pgqueue.queue q
    where q.queue = p_job.queue and q.paused_at is not null and coalesce(q.paused_until > clock_timestamp(), true);
end
$$;
comment on function pgqueue.why_paused is 'Reason: its queue is paused. Not for users.';
