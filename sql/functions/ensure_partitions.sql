-- ensure_partitions: makes the days of job_done, job_attempt, job_step, job_log and event that will be needed, and moves there what was
-- put into a default partition meanwhile. Returns how many it made.
--
-- CREATE LIKE and ATTACH, not PARTITION OF: that would take ACCESS EXCLUSIVE on job_done. A lock that does not
-- come within 200 ms is left for the next call; a missing day never fails a completion. Days are made for at most 100 days
-- of retention: with 400 of them every look at a job by its id would lock them all. What is kept longer stays in the default
-- partition, and prune() deletes it there; a day of which the default holds over 10,000 rows is not made: completions wait
-- while they are moved.
--
-- Moves nothing. Locks job_done SHARE UPDATE EXCLUSIVE and its default partition ACCESS EXCLUSIVE, briefly.
-- Raises nothing. Called by migrate, and by every worker now and then.
create or replace function pgqueue.ensure_partitions(p_days_ahead integer default 3) returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set lock_timeout = '200ms' set timezone = 'UTC'
as $$
declare
  v_table  text;
  v_column text;
  v_name   text;
  v_day    date;
  v_last   date;
  v_made   integer := 0;
  v_many   boolean;
begin
  p_days_ahead := least(greatest(p_days_ahead, 0), 100);
  perform 1 from pgqueue.mutex m where m.name = 'partitions' for update skip locked;
  if not found then return 0; end if;
  for v_table, v_column, v_last in
    select 'job_done', 'prune_at', current_date + p_days_ahead + least(100, (select
      -- What a death in a flow has stopped is kept as long as the dead letter.
      ceil(extract(epoch from greatest(max(s.retain_completed), max(q.retain_completed), case when exists (select 1 from pgqueue.flow)
        then greatest(max(s.retain_dead), max(q.retain_dead)) end)) / 86400)::integer
      from pgqueue.setting s left join pgqueue.queue q on true))
    union all
    select t.name, t.day, current_date + p_days_ahead
    from (values ('job_attempt', 'finished_at'), ('job_step', 'saved_at'), ('job_log', 'logged_at'), ('event', 'at')) t (name, day)
  loop
    for v_day in select generate_series(current_date, v_last, interval '1 day')::date loop
      v_name := v_table || '_' || to_char(v_day, 'YYYYMMDD');
      continue when to_regclass('pgqueue.' || v_name) is not null;
      begin
        -- Nothing may come into the default partition between the move and the attach: it would fail it.
        execute format('lock table pgqueue.%I in access exclusive mode', v_table || '_default');
        execute format('select count(*) > 10000 from (select 1 from pgqueue.%I where %I >= %L and %I < %L limit 10001) d',
                       v_table || '_default', v_column, v_day, v_column, v_day + 1) into v_many;
        continue when v_many;
        execute format('create table pgqueue.%I (like pgqueue.%I including defaults including constraints)', v_name, v_table);
        execute format('comment on table pgqueue.%I is %L', v_name, format('%s of %s (UTC).', v_table, v_day));
        execute format('with late as (delete from pgqueue.%I where %I >= %L and %I < %L returning *) insert into pgqueue.%I select * from late',
                       v_table || '_default', v_column, v_day, v_column, v_day + 1, v_name);
        execute format('alter table pgqueue.%I attach partition pgqueue.%I for values from (%L) to (%L)',
                       v_table, v_name, v_day, v_day + 1);
        v_made := v_made + 1;
      exception when lock_not_available or deadlock_detected then
        return v_made;
      end;
    end loop;
  end loop;
  return v_made;
end
$$;
comment on function pgqueue.ensure_partitions is 'Makes the day partitions that will be needed.';
