-- mark_recurring: a ticker cannot do anything with a definition, and says why: an unknown zone, a task that is gone.
-- Tickers try again in a minute; the first tick() that succeeds heals it. True: nobody had said so before.
--
-- Moves nothing. Locks the row, skipping it if somebody else has it. Raises nothing. Called by tickers.
create or replace function pgqueue.mark_recurring(p_name text, p_version integer, p_reason text) returns boolean
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_known text;
begin
  select r.broken_reason into v_known from pgqueue.recurring_job r where r.name = p_name and r.version = p_version
    for update skip locked;
  if not found then return false; end if;
  update pgqueue.recurring_job r set broken_at = coalesce(r.broken_at, clock_timestamp()),
    broken_reason = left(coalesce(p_reason, 'unknown'), 1000), recheck_at = clock_timestamp() + interval '1 minute'
  where r.name = p_name;
  return v_known is distinct from left(coalesce(p_reason, 'unknown'), 1000);
end
$$;
comment on function pgqueue.mark_recurring is 'Marks a recurring job as broken; true if that is news.';
