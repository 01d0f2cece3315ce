-- why_group_throttled: a handler said RateLimited, so nothing of its group starts for a while.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_throttled(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'group_throttled', format('a handler was rate limited: nothing of group %s of queue %s starts in the next %s',
             g.group_key, g.queue, pgqueue.in_words(g.not_before - clock_timestamp())),
           format('pgqueue queues resume %s --group %s', g.queue, pgqueue.shell_word(g.group_key))
    from pgqueue.queue_group g where g.queue = p_job.queue and g.group_key = p_job.group_key and g.not_before > clock_timestamp();
end
$$;
comment on function pgqueue.why_group_throttled is 'Reason: a handler of its group was rate limited. Not for users.';
