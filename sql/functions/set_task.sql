-- set_task: the circuit breaker of a task: set_task('charge', '{"breaker_rate": 0.5, "breaker_min": 20, "breaker_window": 60,
-- "breaker_open": 30}'). What is not named keeps its value, else has that of the example; breaker_rate null takes the breaker away.
--
-- Moves blocked → pending, when a breaker that held jobs back is taken away. Locks the task's row. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.set_task(task text, settings jsonb) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_row pgqueue.task%rowtype;
begin
  perform pgqueue.check_settings(settings, '{breaker_rate,breaker_min,breaker_window,breaker_open}');
  perform pgqueue.ensure_task(set_task.task);
  select * into v_row from pgqueue.task t where t.task = set_task.task for update;
  begin
    v_row := jsonb_populate_record(v_row, '{"breaker_rate": 0.5, "breaker_min": 20, "breaker_window": 60, "breaker_open": 30}'
      || jsonb_strip_nulls(jsonb_build_object('breaker_rate', v_row.breaker_rate, 'breaker_min', v_row.breaker_min,
                                              'breaker_window', v_row.breaker_window, 'breaker_open', v_row.breaker_open)) || settings);
    if v_row.breaker_rate is null then
      update pgqueue.task t set breaker_rate = null, breaker_min = null, breaker_window = null, breaker_open = null, circuit = 'closed',
        circuit_changed_at = clock_timestamp(), circuit_probe = null, circuit_probe_at = null, circuit_opened = 0, circuit_reason = null
        where t.task = set_task.task;
      if v_row.paused_at is null then perform pgqueue.release_task(set_task.task, 20000); end if;
    else
      update pgqueue.task t set breaker_rate = v_row.breaker_rate, breaker_min = v_row.breaker_min, breaker_window = v_row.breaker_window,
        breaker_open = v_row.breaker_open where t.task = set_task.task;
    end if;
  exception when data_exception or check_violation or not_null_violation then
    raise exception using errcode = 'PQ001', message = format('bad settings for task %L: %s', set_task.task, sqlerrm);
  end;
end
$$;
comment on function pgqueue.set_task is 'Sets the circuit breaker of a task.';
