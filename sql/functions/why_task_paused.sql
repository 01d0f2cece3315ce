-- why_task_paused: its task is paused.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_task_paused(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'task_paused', format('task %s has been paused for %s%s%s', t.task, pgqueue.in_words(clock_timestamp() - t.paused_at),
             ' (' || t.paused_reason || ')', case when t.paused_until is not null then ', until ' || t.paused_until end),
           format('pgqueue tasks resume %s', t.task)
    from pgqueue.task t
    where t.task = p_job.task and t.paused_at is not null and coalesce(t.paused_until > clock_timestamp(), true);
end
$$;
comment on function pgqueue.why_task_paused is 'Reason: its task is paused. Not for users.';
