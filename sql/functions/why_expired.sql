-- why_expired: it may not start any more, or will not be allowed to when it is due.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_expired(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.status not in ('blocked', 'scheduled', 'pending') or p_job.expires_at is null then return; end if;
  if p_job.expires_at <= clock_timestamp() then
    return query select 'expired', format('it had to start before %s and did not: the next sweep cancels it', p_job.expires_at), 'pgqueue sweep';
  elsif p_job.status = 'scheduled' and p_job.expires_at <= p_job.run_at then
    return query select 'expires_first', format('it may not start after %s, but is not due before %s: it will be cancelled', p_job.expires_at, p_job.run_at),
      null::text;
  end if;
end
$$;
comment on function pgqueue.why_expired is 'Reason: it may not start any more. Not for users.';
