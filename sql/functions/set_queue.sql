-- set_queue: changes settings of one queue: set_queue('email', '{"max_attempts": 3, "retry": null}').
-- What is not named stays; null goes back to the default. They hold from now on, for waiting jobs too.
--
--   max_attempts, max_crashes, retry, timeout_seconds, boost_seconds, retain_completed, retain_dead: as set_defaults
--   max_running                          so many jobs of the queue at the same time, over all workers
--   rate, rate_seconds, rate_burst       so many starts within so many seconds (1 if not given), so many at once
--   fair                                 groups take turns
--   group_max_running                    so many jobs of one group at the same time; 1: one after the other, in order
--   group_on_retry                       a job that waits for its retry holds its group's slot ("hold") or not ("step_aside")
--   group_rate, group_rate_seconds, group_rate_burst: as rate, for each group
--   max_depth, shed_below                enqueue() refuses when so many jobs wait; or sheds those below a priority
--
-- A limit that is lowered stops nothing that runs. Transactions that are open when a limit is set for the first time
-- may still start jobs without it.
--
-- Moves blocked → pending, when a limit is raised or lifted (groups beyond the first thousand with the next sweeps). Locks the
-- queue's row, and groups. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.set_queue(queue text, settings jsonb) returns void
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_row    pgqueue.queue%rowtype;
  v_groups text[];
begin
  perform pgqueue.check_settings(settings, '{max_attempts,max_crashes,retry,timeout_seconds,boost_seconds,retain_completed,retain_dead,max_running,rate,rate_seconds,rate_burst,fair,group_max_running,group_on_retry,group_rate,group_rate_seconds,group_rate_burst,max_depth,shed_below}');
  loop  -- somebody may be deleting it
    perform pgqueue.ensure_queue(set_queue.queue);
    select * into v_row from pgqueue.queue q where q.queue = set_queue.queue for update;
    exit when found;
  end loop;
  begin
    v_row := jsonb_populate_record(v_row, settings);
    v_row.retry := nullif(v_row.retry, 'null');
    v_row.fair := coalesce(v_row.fair, false);
    v_row.group_on_retry := coalesce(v_row.group_on_retry, 'hold');
    v_row.rate_seconds := case when v_row.rate is not null then coalesce(v_row.rate_seconds, 1) end;
    v_row.rate_burst := case when v_row.rate is not null then v_row.rate_burst end;
    v_row.group_rate_seconds := case when v_row.group_rate is not null then coalesce(v_row.group_rate_seconds, 1) end;
    v_row.group_rate_burst := case when v_row.group_rate is not null then v_row.group_rate_burst end;
    update pgqueue.queue q set max_attempts = v_row.max_attempts, max_crashes = v_row.max_crashes, retry = v_row.retry,
      timeout_seconds = v_row.timeout_seconds, boost_seconds = v_row.boost_seconds,
      retain_completed = v_row.retain_completed, retain_dead = v_row.retain_dead,
      max_running = v_row.max_running, rate = v_row.rate, rate_seconds = v_row.rate_seconds, rate_burst = v_row.rate_burst,
      fair = v_row.fair, group_max_running = v_row.group_max_running, group_on_retry = v_row.group_on_retry,
      group_rate = v_row.group_rate, group_rate_seconds = v_row.group_rate_seconds, group_rate_burst = v_row.group_rate_burst,
      max_depth = v_row.max_depth, shed_below = v_row.shed_below
    where q.queue = set_queue.queue;
  exception when data_exception or check_violation or not_null_violation then
    raise exception using errcode = 'PQ001', message = format('bad settings for queue %L: %s', set_queue.queue, sqlerrm);
  end;
  perform pgqueue.regate(set_queue.queue);
  if v_row.max_depth is not null then perform pgqueue.count_depth(set_queue.queue); end if;
  v_groups := pgqueue.next_groups(set_queue.queue, '', 1000);
  if cardinality(v_groups) > 0 then
    perform pgqueue.grant_groups(set_queue.queue, pgqueue.lock_groups(set_queue.queue, v_groups, false));
    perform pgqueue.wake(set_queue.queue);
  end if;
end
$$;
comment on function pgqueue.set_queue is 'Changes settings of one queue; null goes back to the default.';
