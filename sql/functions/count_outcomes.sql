-- count_outcomes: how attempts of tasks with a circuit breaker ended; opens and closes circuits.
--
-- Each worker counts in rows of its own, one a tenth of the window, so that no two wait for each other. Only a failure can
-- open a circuit, so only failures look at the sum. The end of the probe closes a half-open circuit or opens it again, for
-- twice the time.
--
-- Moves nothing (what a circuit holds back is released by sweep_limits). Locks the worker's counter, and the task's row
-- when its circuit changes. Raises nothing.
-- Called by complete and fail; not for users.
create or replace function pgqueue.count_outcomes(p_worker_id bigint, p_tasks text[], p_ids bigint[], p_failed boolean) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_task pgqueue.task%rowtype;
  v_sum  record;
begin
  insert into pgqueue.task_outcome as o (task, worker_id, counted_at, completed, failed)
    select t.task, p_worker_id, date_bin(make_interval(secs => t.breaker_window / 10), v_now, '2000-01-01 00:00+00'),
           case when p_failed then 0 else u.n end, case when p_failed then u.n else 0 end
    from (select a.task, count(*) as n from unnest(p_tasks) a (task) group by a.task) u
    join pgqueue.task t on t.task = u.task and t.breaker_rate is not null
    order by t.task
    on conflict (task, counted_at, worker_id) do update set completed = o.completed + excluded.completed, failed = o.failed + excluded.failed;

  for v_task in select t.* from pgqueue.task t where t.task = any (p_tasks) and t.circuit = 'half_open' and t.circuit_probe = any (p_ids)
                order by t.task for update loop
    if p_failed then
      perform pgqueue.open_circuit(v_task.task, format('the probe, job %s, failed', v_task.circuit_probe));
    else
      update pgqueue.task t set circuit = 'closed', circuit_changed_at = v_now, circuit_probe = null, circuit_probe_at = null,
        circuit_opened = 0, circuit_reason = null where t.task = v_task.task;
      delete from pgqueue.task_outcome o where o.task = v_task.task and o.counted_at < v_now - interval '1 day';
      perform pgqueue.release_task(v_task.task, 1000);
    end if;
  end loop;

  if p_failed then
    for v_task in select t.* from pgqueue.task t where t.task = any (p_tasks) and t.breaker_rate is not null and t.circuit = 'closed' loop
      select sum(o.completed + o.failed) as attempts, sum(o.failed) as failed into v_sum from pgqueue.task_outcome o
        where o.task = v_task.task and o.counted_at > v_now - make_interval(secs => v_task.breaker_window)
          and o.counted_at >= coalesce(v_task.circuit_changed_at, '-infinity');
      if v_sum.attempts >= v_task.breaker_min and v_sum.failed >= v_task.breaker_rate * v_sum.attempts then
        perform pgqueue.open_circuit(v_task.task, format('%s of %s attempts within %s s failed', v_sum.failed, v_sum.attempts, v_task.breaker_window));
      end if;
    end loop;
  end if;
end
$$;
comment on function pgqueue.count_outcomes is 'Counts for circuit breakers, opens and closes them. Not for users.';
