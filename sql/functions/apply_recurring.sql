-- apply_recurring: a definition with settings applied: what it would be. Raises for whatever makes no sense.
--
-- What is not named stays; null goes back to the default; p_anew puts everything that is not named back to it. If that
-- changes when it is due, the row is to be planned again, counting from now.
--
-- Moves nothing. Locks nothing. Raises PQ001 for unknown names and bad values, PQ006 for a bad payload.
-- Called by set_recurring, reconcile_recurring; not for users.
create or replace function pgqueue.apply_recurring(p_row pgqueue.recurring_job, p_settings jsonb, p_anew boolean default false)
returns pgqueue.recurring_job
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_known constant text[] := '{queue,task,payload,cron,every,timezone,starts_at,ends_at,jitter,catch_up,catch_up_max,overlap,priority,max_attempts,retry,timeout_seconds,tags,meta,expires_in,retain_for,group_key}';
  v_now   timestamptz := clock_timestamp();
  v_row   pgqueue.recurring_job;
  v_wrong text;
begin
  if p_settings is null or jsonb_typeof(p_settings) <> 'object' then
    raise exception using errcode = 'PQ001', message = 'the settings of a recurring job are a JSON object';
  end if;
  select k into v_wrong from jsonb_object_keys(p_settings) k where k <> all (v_known) limit 1;
  if found then
    raise exception using errcode = 'PQ001', message = format('a recurring job has no setting %L', v_wrong),
      hint = format('Known: %s.', array_to_string(v_known, ', '));
  end if;
  if p_anew then
    p_settings := (select jsonb_object_agg(k, null) from unnest(v_known) k) || p_settings;
  elsif p_settings ->> 'cron' is not null and not p_settings ? 'every' then
    p_settings := p_settings || '{"every": null}';
  elsif p_settings ->> 'every' is not null and not p_settings ? 'cron' then
    p_settings := p_settings || '{"cron": null}';
  end if;
  begin
    v_row := jsonb_populate_record(p_row, p_settings);
    v_row.queue := coalesce(v_row.queue, 'default');
    v_row.payload := coalesce(nullif(v_row.payload, 'null'), '{}');
    v_row.timezone := coalesce(v_row.timezone, 'UTC');
    v_row.jitter := coalesce(v_row.jitter, '0');
    v_row.catch_up := coalesce(v_row.catch_up, 'latest');
    v_row.catch_up_max := coalesce(v_row.catch_up_max, 100);
    v_row.overlap := coalesce(v_row.overlap, 'allow');
    v_row.priority := coalesce(v_row.priority, 0);
    v_row.retry := nullif(v_row.retry, 'null');
    v_row.meta := nullif(v_row.meta, 'null');
  exception when data_exception then
    raise exception using errcode = 'PQ001', message = format('bad settings for recurring job %L: %s', p_row.name, sqlerrm);
  end;
  -- Like any job's, except for what only has a meaning at one moment.
  perform pgqueue.check_job(v_row.queue, v_row.task, null, 'skip', null, v_row.priority, null, null, v_row.max_attempts,
    v_row.retry, v_row.timeout_seconds, v_row.tags, v_row.meta, v_row.retain_for, v_row.group_key);
  perform pgqueue.check_payload(v_row.payload, s.payload_max_bytes) from pgqueue.setting s;
  v_wrong := case
    when v_row.name is null or length(v_row.name) not between 1 and 128 or v_row.name ~ '[^A-Za-z0-9_.:-]'
      then format('bad name %s for a recurring job: use 1 to 128 of A-Z a-z 0-9 _ . : -', coalesce(quote_literal(left(v_row.name, 40)), 'null'))
    when num_nonnulls(v_row.cron, v_row.every) <> 1 then 'a recurring job has either a cron expression or every'
    when length(v_row.cron) not between 1 and 256 then 'a cron expression has 1 to 256 characters'
    when v_row.every not between '1 second' and '3650 days' then 'every must be between 1 second and 3650 days'
    when extract(year from v_row.every) <> 0 or extract(month from v_row.every) <> 0
      then 'every is a distance, and months differ in length: use days, or a cron expression'
    when length(v_row.timezone) not between 1 and 64 then 'timezone must be a name such as Europe/Berlin'
    when v_row.starts_at not between '1970-01-02 00:00+00' and '9999-12-30 00:00+00'
      or v_row.ends_at not between '1970-01-02 00:00+00' and '9999-12-30 00:00+00'
      then 'starts_at and ends_at must lie between the years 1970 and 9999'
    when v_row.ends_at < v_row.starts_at then 'ends_at must not lie before starts_at'
    when v_row.jitter not between '0' and '1 day' then 'jitter must be between 0 and 1 day'
    when v_row.catch_up not in ('skip', 'latest', 'all') then 'catch_up must be skip, latest or all'
    when v_row.catch_up_max not between 1 and 1000 then 'catch_up_max must be between 1 and 1000'
    when v_row.overlap not in ('allow', 'skip', 'replace') then 'overlap must be allow, skip or replace'
    when v_row.expires_in not between '1 second' and '3650 days' then 'expires_in must be between 1 second and 3650 days'
    when v_row.expires_in <= v_row.jitter then 'expires_in must be longer than jitter'
    -- Room for what fire_recurring() adds.
    when pg_column_size(v_row.meta) > 16000 then 'meta must be a JSON object of at most 16,000 bytes'
  end;
  if v_wrong is not null then raise exception using errcode = 'PQ001', message = v_wrong; end if;

  v_row.changed_at := v_now;
  if (v_row.cron, v_row.every, v_row.timezone, v_row.starts_at, v_row.ends_at)
     is distinct from (p_row.cron, p_row.every, p_row.timezone, p_row.starts_at, p_row.ends_at) then
    v_row.version := coalesce(p_row.version, 0) + 1;
    v_row.planned := false;
    v_row.planned_from := v_now;
    v_row.next_run_at := null;
  end if;
  v_row.broken_at := null;  -- perhaps that was the cure
  v_row.broken_reason := null;
  v_row.recheck_at := null;
  return v_row;
end
$$;
comment on function pgqueue.apply_recurring is 'A definition with settings applied. Not for users.';
