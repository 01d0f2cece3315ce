-- check_settings: raises unless every member of a JSON object is a known setting.
--
-- Moves nothing. Locks nothing. Raises PQ001 for unknown names and bad values.
-- Called by set_queue, set_defaults; not for users.
create or replace function pgqueue.check_settings(p_settings jsonb, p_known text[]) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_unknown text;
begin
  if p_settings is null or jsonb_typeof(p_settings) <> 'object' then
    raise exception using errcode = 'PQ001', message = 'settings must be a JSON object';
  end if;
  select k into v_unknown from jsonb_object_keys(p_settings) k where k <> all (p_known) limit 1;
  if found then
    raise exception using errcode = 'PQ001', message = format('there is no setting %L', v_unknown),
      hint = format('Known: %s.', array_to_string(p_known, ', '));
  end if;
  -- A bare number would be read as seconds: '30' would keep dead letters for half a minute.
  select k into v_unknown from unnest('{retain_completed,retain_dead}'::text[]) k
    where p_settings ->> k ~ '^\s*-?[0-9.]+\s*$' and p_settings ->> k !~ '^\s*0+\s*$' limit 1;
  if found then
    raise exception using errcode = 'PQ001', message = format('%s needs a unit, for example "30 days"', v_unknown);
  end if;
  perform pgqueue.check_retry(nullif(p_settings -> 'retry', 'null'));
end
$$;
comment on function pgqueue.check_settings is 'Raises PQ001 for settings that do not exist. Not for users.';
