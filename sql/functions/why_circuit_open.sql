-- why_circuit_open: the circuit of its task is open: attempts failed, so none starts until a probe has succeeded.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_circuit_open(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'circuit_open', format('the circuit of task %s has been open for %s (%s); %s', t.task,
             pgqueue.in_words(clock_timestamp() - t.circuit_changed_at), t.circuit_reason,
             case when t.circuit_probe_at is null then 'it stays so until somebody closes it'
                  when t.circuit_probe_at <= clock_timestamp() then 'the next sweep lets one job through as a probe'
                  else format('in %s one job is let through as a probe', pgqueue.in_words(t.circuit_probe_at - clock_timestamp())) end),
           format('pgqueue tasks close %s', t.task)
    from pgqueue.task t where t.task = p_job.task and t.circuit = 'open';
end
$$;
comment on function pgqueue.why_circuit_open is 'Reason: the circuit of its task is open. Not for users.';
