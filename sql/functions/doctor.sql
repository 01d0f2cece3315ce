-- doctor: is everything well? A row for each check: ok, warning or broken, what was found, and what to do about it.
--
-- Each check is a function of its own, named here; a new mechanism adds a function and its name. What only a client can
-- know (its clock, a pooler in between, its own version) `pgqueue doctor` adds.
--
-- Moves nothing. Locks nothing. Raises nothing of its own.
-- Called by operators.
create or replace function pgqueue.doctor() returns table (name text, verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_check text;
begin
  foreach v_check in array '{doctor_workers, doctor_versions, doctor_upkeep, doctor_tasks, doctor_alarms, doctor_circuits, doctor_queues, doctor_recurring,
                             doctor_dead_letters, doctor_snapshots, doctor_dead_rows, doctor_autovacuum, doctor_partitions, doctor_connections, doctor_durability, doctor_roles}'::text[] loop
    return query execute format('select substr(%L, 8), d.verdict, d.finding, d.remedy from pgqueue.%I() d', v_check, v_check);
  end loop;
end
$$;
comment on function pgqueue.doctor is 'Is everything well? What is found, and what to do about it.';
