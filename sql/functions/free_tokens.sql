-- free_tokens: how many jobs a rate lets start now, by GCRA: a token bucket in one timestamp.
--
-- p_full_at is when the bucket is full again. A start moves it on by p_seconds / p_rate, so that nothing ever has to
-- refill it. In any window of p_seconds at most p_rate + p_burst jobs start.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by queue_room, claim_gated, grant_groups; not for users.
create or replace function pgqueue.free_tokens(
  p_full_at timestamptz, p_now timestamptz, p_rate integer, p_seconds real, p_burst integer, out tokens integer, out next_at timestamptz)
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_step  double precision := p_seconds::double precision / p_rate;
  v_burst integer := coalesce(p_burst, greatest(1, floor(p_rate * 0.1 / p_seconds)::integer));
  v_wait  double precision := case when p_full_at > p_now then extract(epoch from p_full_at - p_now) else 0 end;
begin
  -- A microsecond's grace: timestamps cannot hold more, and a token that comes a rounding too late is a poll too many.
  tokens := floor((v_burst * v_step - v_wait + 1e-6) / v_step);
  next_at := case when tokens >= 1 then p_now else p_full_at - make_interval(secs => (v_burst - 1) * v_step) end;
end
$$;
comment on function pgqueue.free_tokens is 'How many jobs a rate lets start now, and when the next may. Not for users.';
