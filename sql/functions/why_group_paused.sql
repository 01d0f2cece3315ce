-- why_group_paused: its group is paused.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_paused(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'group_paused', format('group %s of queue %s has been paused for %s%s%s', g.group_key, g.queue, pgqueue.in_words(clock_timestamp() - g.paused_at),
             ' (' || g.paused_reason || ')', case when g.paused_until is not null then ', until ' || g.paused_until end),
           format('pgqueue queues resume %s --group %s', g.queue, pgqueue.shell_word(g.group_key))
    from pgqueue.queue_group g
    where g.queue = p_job.queue and g.group_key = p_job.group_key and g.paused_at is not null and coalesce(g.paused_until > clock_timestamp(), true);
end
$$;
comment on function pgqueue.why_group_paused is 'Reason: its group is paused. Not for users.';
