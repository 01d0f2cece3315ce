-- recurring_after: the moment after which due times of a definition count.
--
-- Moves nothing. Locks nothing. Raises nothing. Called by due_recurring, tick; not for users.
create or replace function pgqueue.recurring_after(p_row pgqueue.recurring_job, p_now timestamptz) returns timestamptz
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
begin
  return greatest(p_row.planned_from, p_row.last_due_at, case when p_row.paused_until <= p_now then p_row.paused_until end,
                  p_row.starts_at - interval '1 microsecond');
end
$$;
comment on function pgqueue.recurring_after is 'The moment after which due times of a definition count. Not for users.';
