-- why_shed: it was cancelled the moment it was enqueued, because its queue was full.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_shed(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status <> 'cancelled' or p_job.error_type is distinct from 'Shed' then return; end if;
  return query
    select 'shed', format('it was shed when it was enqueued, %s ago: %s', pgqueue.in_words(clock_timestamp() - p_job.finished_at), p_job.error),
           format('pgqueue jobs retry %s', p_job.id)
             || case when q.max_depth is null then ''
                  else format('   # so that more may wait: pgqueue queues set %s max_depth=%s', q.queue, 2 * q.max_depth::bigint) end
    from (select 1) one left join pgqueue.queue q on q.queue = p_job.queue;
end
$$;
comment on function pgqueue.why_shed is 'Reason: its queue was full. Not for users.';
