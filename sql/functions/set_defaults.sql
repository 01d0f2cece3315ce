-- set_defaults: changes what holds for every queue that does not say otherwise. As set_queue, for the one row of
-- setting.
--
-- Moves nothing. Locks the row. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.set_defaults(settings jsonb) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_row pgqueue.setting%rowtype;
begin
  perform pgqueue.check_settings(settings, '{max_attempts,max_crashes,retry,timeout_seconds,boost_seconds,retain_completed,retain_dead,payload_max_bytes}');
  if settings -> 'retry' = 'null' then
    raise exception using errcode = 'PQ001', message = 'the default retry policy cannot be null';
  end if;
  select * into v_row from pgqueue.setting for update;
  begin
    v_row := jsonb_populate_record(v_row, settings);
    update pgqueue.setting s set max_attempts = v_row.max_attempts, max_crashes = v_row.max_crashes, retry = v_row.retry,
      timeout_seconds = v_row.timeout_seconds, boost_seconds = v_row.boost_seconds, retain_completed = v_row.retain_completed,
      retain_dead = v_row.retain_dead, payload_max_bytes = v_row.payload_max_bytes;
  exception when data_exception or check_violation or not_null_violation then
    raise exception using errcode = 'PQ001', message = format('bad defaults: %s', sqlerrm);
  end;
end
$$;
comment on function pgqueue.set_defaults is 'Changes the defaults of all queues.';
