-- why_circuit_half_open: one job of its task was let through as a probe, and it is another one.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_circuit_half_open(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  return query
    select 'circuit_half_open', format('the circuit of task %s is half open: what becomes of its probe, %s, decides whether the others go on', t.task,
             case when t.circuit_probe is null then 'which the next sweep chooses'
                  else format('job %s (%s)', t.circuit_probe, coalesce((select j.status from pgqueue.job_live j where j.id = t.circuit_probe), 'gone')) end),
           format('pgqueue tasks close %s', t.task)
    from pgqueue.task t where t.task = p_job.task and t.circuit = 'half_open' and t.circuit_probe is distinct from p_job.id;
end
$$;
comment on function pgqueue.why_circuit_half_open is 'Reason: the circuit of its task is half open. Not for users.';
