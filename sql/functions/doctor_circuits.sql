-- doctor_circuits: are circuits open, so that jobs of a task are held back?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_circuits() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select case when t.circuit = 'open' and t.circuit_probe_at is not null then 'broken' else 'warning' end,
           format('task %s: its circuit is %s for %s%s; %s jobs are held back', t.task, replace(t.circuit, '_', ' '),
                  pgqueue.in_words(clock_timestamp() - t.circuit_changed_at), ' (' || t.circuit_reason || ')',
                  (select case when count(*) > 10000 then 'more than 10,000' else count(*)::text end
                   from (select 1 from pgqueue.job_live j where j.task = t.task and j.waits_for = 'task' limit 10001) c)),
           case when t.circuit_probe_at is null and t.circuit = 'open' then format('nobody but you closes it: pgqueue tasks close %s', t.task)
                else format('it closes by itself when a probe succeeds; mend what fails, or: pgqueue tasks close %s', t.task) end
    from pgqueue.task t where t.circuit <> 'closed' order by t.task limit 20;
  if not found then return query select 'ok', 'all are closed', null::text; end if;
end
$$;
comment on function pgqueue.doctor_circuits is 'A check of doctor. Not for users.';
