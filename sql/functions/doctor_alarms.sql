-- doctor_alarms: are there tasks that fail everywhere at once, on whatever worker? See alarm_tasks.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_alarms() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'broken', format('task %s fails on every worker, and nothing of it succeeds, since %s ago', t.task, pgqueue.in_words(clock_timestamp() - t.alarmed_at)),
           format('pgqueue jobs list -t %s --newer 1h; until it is mended: pgqueue tasks pause %s', t.task, t.task)
    from pgqueue.task t where t.alarmed_at is not null order by t.task limit 20;
  if not found then return query select 'ok', 'no task fails everywhere', null::text; end if;
end
$$;
comment on function pgqueue.doctor_alarms is 'A check of doctor. Not for users.';
