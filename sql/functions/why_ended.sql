-- why_ended: completed, dead or cancelled, and why it ended so.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_ended(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_outcome text;
  v_most    integer;
  v_cause   bigint;
begin
  if p_job.status = 'completed' then
    return query select 'completed', format('it completed %s ago, at attempt %s, after it had run for %s',
      pgqueue.in_words(clock_timestamp() - p_job.finished_at), p_job.attempt, pgqueue.in_words(p_job.finished_at - p_job.started_at)), null::text;
  elsif p_job.status = 'cancelled' and p_job.error_type is distinct from 'Shed' then  -- see why_shed
    -- A job of a flow that was stopped comes back with the one whose end began it.
    with recursive stopped as (
      select n.stopped_by as id from pgqueue.flow_node n where n.job_id = p_job.id and n.stopped_by is not null
      union select n.stopped_by from stopped s join pgqueue.flow_node n on n.job_id = s.id where n.stopped_by is not null)
    select s.id into v_cause from stopped s join pgqueue.flow_node n on n.job_id = s.id where n.stopped_by is null;
    return query select case when v_cause is not null then 'stopped' when p_job.error_type = 'Expired' then 'expired' else 'cancelled' end,
      format('it was cancelled %s ago, %s: %s', pgqueue.in_words(clock_timestamp() - p_job.finished_at),
             case p_job.attempt when 0 then 'before it ever ran' else format('at attempt %s', p_job.attempt) end, coalesce(p_job.error, 'no reason was given')),
      format('pgqueue jobs retry %s', coalesce(v_cause, p_job.id));
  elsif p_job.status = 'dead' then
    select a.outcome into v_outcome from pgqueue.job_attempt a where a.job_id = p_job.id order by a.token desc limit 1;
    select coalesce(p_job.max_attempts, q.max_attempts, s.max_attempts) into v_most
      from pgqueue.setting s left join pgqueue.queue q on q.queue = p_job.queue;
    return query select case when v_outcome = 'lost' then 'dead_lost' when p_job.attempt >= v_most then 'dead_attempts' else 'dead_fatal' end,
      format('it died %s ago, %s; last error: %s', pgqueue.in_words(clock_timestamp() - p_job.finished_at),
             case when v_outcome = 'lost' then format('when its worker was lost for the %s. time', p_job.crashes)
                  when p_job.attempt >= v_most then format('after %s of %s attempts', p_job.attempt, v_most)
                  else format('at attempt %s of %s, by an error that is not retried', p_job.attempt, v_most) end,
             concat_ws(': ', p_job.error_type, left(p_job.error, 300))),
      format('pgqueue jobs show %s, then: pgqueue dead retry %s', p_job.id, p_job.id);
  end if;
end
$$;
comment on function pgqueue.why_ended is 'Reason: it has ended. Not for users.';
