-- job_filter: a filter of jobs as the condition of a query on pgqueue.job j; every given member must hold:
--
--   {"status": "dead", "queue": "email", "task": "send_receipt", "key": "receipt:7", "tag": "vip", "worker_id": 3,
--    "group_key": "tenant:7", "waits_for": "group",
--    "error_type": "TimeoutError", "error": "part of the message", "fingerprint": "0b1c2d3e",
--    "enqueued_after": "…", "enqueued_before": "…", "finished_after": "…", "finished_before": "…"}
--
-- status may be an array of statuses. As text, so that each query gets the plan of what it really asks.
--
-- Moves nothing. Locks nothing. Raises PQ001 for members that do not exist and values that cannot be.
-- Called by list_jobs, list_dead, dead_groups, count_jobs, cancel_many; not for users.
create or replace function pgqueue.job_filter(p_filter jsonb) returns text
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  c_statuses constant text[] := '{blocked,scheduled,pending,running,completed,cancelled,dead}';
  v_parts    text[] := '{true}';
  v_name     text;
  v_value    text;
  v_statuses text[];
begin
  if p_filter is null or jsonb_typeof(p_filter) <> 'object' then
    raise exception using errcode = 'PQ001', message = 'a filter must be a JSON object';
  end if;
  for v_name, v_value in select * from jsonb_each_text(jsonb_strip_nulls(p_filter)) loop
    case
      when v_name = 'status' then
        v_statuses := array(select jsonb_array_elements_text(
          case jsonb_typeof(p_filter -> 'status') when 'array' then p_filter -> 'status' else jsonb_build_array(p_filter -> 'status') end));
        if not v_statuses <@ c_statuses then
          raise exception using errcode = 'PQ001', message = format('there is no status %L', v_value),
            hint = format('Known: %s.', array_to_string(c_statuses, ', '));
        end if;
        v_parts := v_parts || format('j.status = any (%L)', v_statuses);
      when v_name in ('queue', 'task', 'key', 'error_type', 'group_key', 'waits_for') then v_parts := v_parts || format('j.%I = %L', v_name, v_value);
      when v_name = 'tag' then v_parts := v_parts || format('%L = any (j.tags)', v_value);
      when v_name = 'worker_id' then v_parts := v_parts || format('j.worker_id = %L', v_value::bigint);
      when v_name = 'error' then v_parts := v_parts || format('position(%L in j.error) > 0', v_value);
      when v_name = 'fingerprint' then v_parts := v_parts || format('pgqueue.fingerprint(j.error_type, j.error) = %L', v_value);
      when v_name in ('enqueued_after', 'finished_after') then
        v_parts := v_parts || format('j.%I >= %L', replace(v_name, '_after', '_at'), v_value::timestamptz);
      when v_name in ('enqueued_before', 'finished_before') then
        v_parts := v_parts || format('j.%I < %L', replace(v_name, '_before', '_at'), v_value::timestamptz);
      else
        raise exception using errcode = 'PQ001', message = format('jobs cannot be filtered by %L', v_name);
    end case;
  end loop;
  return array_to_string(v_parts, ' and ');
exception when data_exception then
  raise exception using errcode = 'PQ001', message = format('bad value %L for the filter %L', v_value, v_name);
end
$$;
comment on function pgqueue.job_filter is 'A filter of jobs as a condition in SQL. Not for users.';
