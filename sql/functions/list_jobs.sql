-- list_jobs: jobs that match a filter (see job_filter), the newest first, a page at a time.
--
-- The next page: before => the id of the last row. Nothing is counted, and no page looks at more than 100,000 jobs: when
-- those are over before the page is full, a last row with only an id says where to go on.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by operators and readers: no payloads.
create or replace function pgqueue.list_jobs(filter jsonb default '{}', before bigint default null, batch integer default 50)
returns table (id bigint, queue text, task text, status text, priority smallint, attempt smallint, enqueued_at timestamptz,
               run_at timestamptz, started_at timestamptz, finished_at timestamptz, worker_id bigint, error_type text, error text,
               key text, tags text[], group_key text, waits_for text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
#variable_conflict use_column
declare
  c_most  constant integer := 100000;
  v_where text := pgqueue.job_filter(filter);
  v_part  text := coalesce('and ' || pgqueue.job_filter(jsonb_build_object('status', filter -> 'status')), '');
  v_from  text;
  v_n     integer;
  v_last  bigint;
begin
  if batch is null or batch not between 1 and 10000 then
    raise exception using errcode = 'PQ001', message = 'batch must be between 1 and 10000';
  end if;
  -- The few that run stand among millions that wait, but have an index of their own.
  v_from := case when filter ->> 'status' = 'running' then 'pgqueue.job_live j'
    else format('(select * from pgqueue.job j where j.id < $1 %s order by j.id desc limit %s) j', v_part, c_most) end;
  return query execute format(
    'select j.id, j.queue, j.task, j.status, j.priority, j.attempt, j.enqueued_at, j.run_at, j.started_at, j.finished_at,'
    ' j.worker_id, j.error_type, left(j.error, 4000), j.key, j.tags, j.group_key, j.waits_for from %s where j.id < $1 and %s order by j.id desc limit %s',
    v_from, v_where, batch) using coalesce(before, 9223372036854775807);
  get diagnostics v_n = row_count;
  if v_n < batch and filter ->> 'status' is distinct from 'running' then
    execute format('select j.id from pgqueue.job j where j.id < $1 %s order by j.id desc offset %s limit 1', v_part, c_most - 1)
      into v_last using coalesce(before, 9223372036854775807);
    if v_last is not null then
      id := v_last;
      return next;
    end if;
  end if;
end
$$;
comment on function pgqueue.list_jobs is 'A page of the jobs that match a filter, the newest first.';
