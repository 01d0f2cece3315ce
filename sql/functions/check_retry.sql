-- check_retry: raises unless the policy is one that retry_delay understands. Null is accepted.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by check_job, set_queue, set_defaults.
create or replace function pgqueue.check_retry(policy jsonb) returns void
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_type    text := policy ->> 'type';
  v_numbers text[];
  v_name    text;
  v_value   jsonb;
  v_wrong   text;
begin
  if policy is null then return; end if;
  v_numbers := case v_type
    when 'fixed' then '{delay}' when 'linear' then '{base,step}' when 'exponential' then '{base,factor}'
    when 'polynomial' then '{base,power}' when 'list' then '{}' end::text[];
  if jsonb_typeof(policy) <> 'object' then
    v_wrong := 'it must be a JSON object';
  elsif v_numbers is null then
    v_wrong := 'its type must be fixed, linear, exponential, polynomial or list';
  else
    for v_name, v_value in select * from jsonb_each(policy) loop
      if v_name = 'type' then
        continue;
      elsif v_name = 'jitter' then
        if not (v_value in ('"none"', '"full"', '"decorrelated"')
                or jsonb_typeof(v_value) = 'number' and (v_value #>> '{}')::numeric between 0 and 100) then
          v_wrong := 'jitter must be "none", "full", "decorrelated" or a percentage from 0 to 100';
        end if;
      elsif v_name = 'delays' and v_type = 'list' then
        if jsonb_typeof(v_value) <> 'array' or jsonb_array_length(v_value) not between 1 and 100
           or exists (select 1 from jsonb_array_elements(v_value) d
                      where jsonb_typeof(d) <> 'number' or (d #>> '{}')::numeric not between 0 and 31536000
                         or (d #>> '{}')::numeric > 0 and (d #>> '{}')::numeric < 1e-6) then
          v_wrong := 'delays must be 1 to 100 numbers of seconds';
        end if;
      elsif v_name = 'cap' or v_name = any (v_numbers) then
        if jsonb_typeof(v_value) <> 'number' or (v_value #>> '{}')::numeric not between 0 and 31536000
           or (v_value #>> '{}')::numeric > 0 and (v_value #>> '{}')::numeric < 1e-6 then
          v_wrong := format('%s must be 0 or a number from 0.000001 to 31536000', v_name);
        end if;
      else
        v_wrong := format('%s policies have no "%s"', v_type, v_name);
      end if;
    end loop;
    if v_type = 'list' and not policy ? 'delays' then v_wrong := 'a list needs its delays'; end if;
    if v_type = 'fixed' and not policy ? 'delay' then v_wrong := 'a fixed policy needs its delay'; end if;
    if v_wrong is null and v_type = 'exponential' and coalesce((policy ->> 'factor')::numeric, 2) < 1 then
      v_wrong := 'factor must be at least 1';
    end if;
  end if;
  if v_wrong is not null then
    raise exception using errcode = 'PQ001', message = format('bad retry policy: %s', v_wrong),
      detail = left(policy::text, 200), hint = 'See retry_delay() for what a policy may say.';
  end if;
end
$$;
comment on function pgqueue.check_retry is 'Raises PQ001 unless retry_delay() understands the policy.';
