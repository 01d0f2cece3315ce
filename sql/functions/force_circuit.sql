-- force_circuit: an operator opens a circuit (it stays open until somebody closes it) or closes it.
--
-- Moves blocked → pending, when it is closed. Locks the task's row. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.force_circuit(task text, state text, reason text default null) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if force_circuit.state is null or force_circuit.state not in ('open', 'closed') then
    raise exception using errcode = 'PQ001', message = 'a circuit is forced open or closed';
  end if;
  perform pgqueue.ensure_task(force_circuit.task);
  update pgqueue.task t set circuit = force_circuit.state, circuit_changed_at = clock_timestamp(), circuit_probe = null,
    circuit_probe_at = null, circuit_opened = 0,
    circuit_reason = case force_circuit.state when 'open' then coalesce(left(force_circuit.reason, 1000), 'forced by an operator') end
    where t.task = force_circuit.task;
  if force_circuit.state = 'closed' then
    perform pgqueue.release_task(t.task, 20000) from pgqueue.task t where t.task = force_circuit.task and t.paused_at is null;
  else
    perform pg_notify('pgqueue', 'circuit ' || force_circuit.task);
  end if;
end
$$;
comment on function pgqueue.force_circuit is 'Opens or closes the circuit of a task by hand.';
