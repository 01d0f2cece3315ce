-- tick: takes what a ticker has computed for one definition: enqueues the jobs for its due times, and moves on to the
-- next one, all or nothing. One row for each due time that was dealt with, and a last one, planned, with the next; none
-- if somebody else has the definition just now, or it is not what the ticker thought (version).
--
-- p_due holds due times up to now, ascending, the latest of them without a gap; p_next is the one after them, null if
-- there is none. That they are due is decided by this database's clock, and that each of them is dealt with once by the
-- primary key of recurring_run: a ticker whose clock is wrong, or that dies anywhere, changes nothing.
--
-- catch_up decides which of them become jobs: skip: the last one, if it is less than a minute late (as long as a ticker
-- may sleep); latest: the last one; all: the last catch_up_max.
--
-- Moves → pending or scheduled. Locks the row, skipping it if somebody else has it; with overlap replace the last job.
-- Raises PQ001 for due times that are not due; else as enqueue, and nothing has happened. Called by tickers.
create or replace function pgqueue.tick(p_name text, p_version integer, p_due timestamptz[], p_next timestamptz)
returns table (due_at timestamptz, outcome text, job_id bigint)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_now   timestamptz;
  v_row   pgqueue.recurring_job;
  v_run   pgqueue.recurring_run;
  v_n     integer := coalesce(cardinality(p_due), 0);
  v_last  timestamptz := p_due[v_n];
  v_first integer;
begin
  select r.* into v_row from pgqueue.recurring_job r where r.name = p_name and r.version = p_version and r.active
    for update skip locked;
  if not found then return; end if;
  v_now := clock_timestamp();
  if v_row.paused_at is not null and coalesce(v_row.paused_until > v_now, true) then return; end if;
  if v_n > 0 and (v_last > v_now or v_last > v_row.ends_at or p_due[1] <= pgqueue.recurring_after(v_row, v_now)
     or p_due is distinct from array(select distinct d from unnest(p_due) d where d is not null order by d)) then
    raise exception using errcode = 'PQ001', message = format('these due times of recurring job %L are not due: %s', p_name, p_due);
  elsif p_next <= v_last or p_next <= v_row.last_due_at then
    raise exception using errcode = 'PQ001', message = format('recurring job %L cannot be due next at %s', p_name, p_next);
  end if;

  v_first := case v_row.catch_up
    when 'skip' then case when v_last > v_now - interval '1 minute' then v_n else v_n + 1 end
    when 'latest' then v_n
    else v_n - v_row.catch_up_max + 1 end;
  if v_first > 1 and v_n > 0 then v_row.missed_at := p_due[v_first - 1]; end if;
  for i in greatest(v_first, 1) .. v_n loop
    v_run := pgqueue.fire_recurring(v_row, p_due[i], false);
    continue when v_run.name is null;
    v_row.last_job_id := coalesce(v_run.job_id, v_row.last_job_id);
    due_at := v_run.due_at; outcome := v_run.outcome; job_id := v_run.job_id;
    return next;
  end loop;

  update pgqueue.recurring_job r set
    version = v_row.version + 1, planned = true, next_run_at = p_next, last_due_at = coalesce(v_last, v_row.last_due_at),
    last_job_id = v_row.last_job_id, missed_at = v_row.missed_at, broken_at = null, broken_reason = null, recheck_at = null,
    -- If it was paused, that has ended by itself.
    planned_from = greatest(v_row.planned_from, v_row.paused_until), paused_at = null, paused_until = null, paused_reason = null
  where r.name = p_name;
  due_at := p_next; outcome := 'planned'; job_id := null;
  return next;
end
$$;
comment on function pgqueue.tick is 'Enqueues the jobs for the due times of one recurring job, and moves on to the next.';
