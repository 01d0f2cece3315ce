-- retry_delay: how many seconds to wait before the next attempt. Pure arithmetic; every client, the sweeper and
-- operators get the same answer.
--
--   {"type": "fixed",       "delay": 10}
--   {"type": "linear",      "base": 5, "step": 5}            base + step × (attempt − 1)
--   {"type": "exponential", "base": 5, "factor": 2}          base × factor ^ (attempt − 1)
--   {"type": "polynomial",  "base": 1, "power": 4}           base × attempt ^ power
--   {"type": "list",        "delays": [1, 5, 30]}            the last one repeats
-- and for each: "cap": seconds (default one day), "jitter": "none" (default), "full" (0 to the delay),
-- "decorrelated" (base to three times the previous delay, or the cap) or a number, percent up and down.
--
-- Moves nothing. Locks nothing. Raises nothing for a policy that check_retry accepts, else PQ001.
-- Called by fail, sweep.
create or replace function pgqueue.retry_delay(policy jsonb, attempt integer, previous_delay double precision default null)
returns double precision
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_cap    double precision;
  v_n      double precision := greatest(attempt, 1);
  v_base   double precision;
  v_factor double precision;
  v_log    double precision;
  v_delay  double precision;
  v_jitter text := coalesce(policy ->> 'jitter', 'none');
begin
  v_cap := coalesce((policy ->> 'cap')::double precision, 86400);
  v_base := coalesce((policy ->> 'base')::double precision, (policy ->> 'delay')::double precision, 1);
  v_factor := coalesce((policy ->> 'factor')::double precision, 2);
  -- Growth is compared as a logarithm first: 2 ^ 32,000 would raise 22003 before any cap could catch it.
  case policy ->> 'type'
    when 'fixed'  then v_delay := v_base;
    when 'linear' then v_delay := v_base + coalesce((policy ->> 'step')::double precision, v_base) * (v_n - 1);
    when 'exponential', 'polynomial' then
      if v_base <= 0 then
        v_delay := 0;
      else
        v_log := ln(v_base) + case policy ->> 'type'
          when 'exponential' then ln(v_factor) * (v_n - 1)
          else ln(v_n) * coalesce((policy ->> 'power')::double precision, 2) end;
        v_delay := case when v_cap <= 0 then 0 when v_log >= ln(v_cap) then v_cap else exp(v_log) end;
      end if;
    when 'list' then
      v_delay := (policy -> 'delays' ->> least(v_n::integer, jsonb_array_length(policy -> 'delays')) - 1)::double precision;
  end case;
  v_delay := least(v_delay, v_cap);

  if v_jitter = 'full' then
    v_delay := v_delay * random();
  elsif v_jitter = 'decorrelated' then
    -- Capped before the draw, not after: at the cap they would all be equal again.
    v_delay := v_base + random() * (least(3 * greatest(coalesce(previous_delay, v_base), v_base), v_cap) - v_base);
  elsif v_jitter <> 'none' then
    v_delay := v_delay * (1 + (2 * random() - 1) * v_jitter::double precision / 100);
  end if;
  return round(least(greatest(v_delay, 0), v_cap)::numeric, 6);  -- microseconds: what a timestamp can hold
exception when data_exception or case_not_found then
  perform pgqueue.check_retry(coalesce(policy, 'null'));  -- says what is wrong with it
  raise exception using errcode = 'PQ001', message = format('there is no delay by the policy %s', left(policy::text, 200));
end
$$;
comment on function pgqueue.retry_delay is 'Seconds to wait before the next attempt, by a retry policy.';
