-- open_circuit: from now on no job of the task is claimed; after breaker_open seconds, doubled each time, one is let through.
--
-- Moves nothing: claims park the jobs that they meet. Locks the task's row. Raises nothing.
-- Called by count_outcomes; not for users.
create or replace function pgqueue.open_circuit(p_task text, p_reason text) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
begin
  update pgqueue.task t set circuit = 'open', circuit_changed_at = clock_timestamp(), circuit_probe = null, circuit_reason = p_reason,
    circuit_opened = t.circuit_opened + 1,
    circuit_probe_at = clock_timestamp() + make_interval(secs => least(t.breaker_open * 2 ^ least(t.circuit_opened, 20), greatest(t.breaker_open, 3600)))
  where t.task = p_task and t.breaker_rate is not null and t.circuit <> 'open';
  -- A task's name has no blank: workers tell this from a queue that has work.
  if found then perform pg_notify('pgqueue', 'circuit ' || p_task); end if;
end
$$;
comment on function pgqueue.open_circuit is 'Stops claims of a task whose attempts fail. Not for users.';
