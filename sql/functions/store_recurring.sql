-- store_recurring: writes a definition: a new row, or over the one of its name. False: a new one was to be made, and
-- somebody else was quicker.
--
-- Moves nothing. Locks the row; a new one waits for a transaction that is making the same name. Raises nothing.
-- Called by set_recurring, reconcile_recurring; not for users.
create or replace function pgqueue.store_recurring(p_row pgqueue.recurring_job, p_new boolean) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
begin
  if p_new then
    insert into pgqueue.recurring_job values (p_row.*) on conflict (name) do nothing;
    if not found then return false; end if;
  else
    update pgqueue.recurring_job r set (
      queue, task, payload, cron, every, timezone, starts_at, ends_at, jitter, catch_up, catch_up_max, overlap, priority,
      max_attempts, retry, timeout_seconds, tags, meta, expires_in, retain_for, owner, source, declared, edited_at, active,
      version, planned, planned_from, next_run_at, broken_at, broken_reason, recheck_at, changed_at,
      group_key) = row(
      p_row.queue, p_row.task, p_row.payload, p_row.cron, p_row.every, p_row.timezone, p_row.starts_at, p_row.ends_at,
      p_row.jitter, p_row.catch_up, p_row.catch_up_max, p_row.overlap, p_row.priority, p_row.max_attempts, p_row.retry,
      p_row.timeout_seconds, p_row.tags, p_row.meta, p_row.expires_in, p_row.retain_for, p_row.owner, p_row.source,
      p_row.declared, p_row.edited_at, p_row.active, p_row.version, p_row.planned, p_row.planned_from, p_row.next_run_at,
      p_row.broken_at, p_row.broken_reason, p_row.recheck_at, p_row.changed_at,
      p_row.group_key)
    where r.name = p_row.name;
  end if;
  -- A queue's name has no blank: workers tell this from a wake-up. Tickers look at once.
  perform pg_notify('pgqueue', 'recurring changed');
  return true;
end
$$;
comment on function pgqueue.store_recurring is 'Writes a definition. Not for users.';
