-- list_dead: dead letters that match a filter (see job_filter), those that died last first, a page at a time.
--
-- The next page: before_at, before_id => finished_at and id of the last row.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by operators and readers: no payloads.
create or replace function pgqueue.list_dead(
  filter jsonb default '{}', before_at timestamptz default null, before_id bigint default null, batch integer default 50)
returns table (id bigint, queue text, task text, attempt smallint, crashes smallint, enqueued_at timestamptz, finished_at timestamptz,
               fingerprint text, error_type text, error text, key text, tags text[], group_key text)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
  if batch is null or batch not between 1 and 10000 then
    raise exception using errcode = 'PQ001', message = 'batch must be between 1 and 10000';
  end if;
  return query execute format(
    'select j.id, j.queue, j.task, j.attempt, j.crashes, j.enqueued_at, j.finished_at, pgqueue.fingerprint(j.error_type, j.error),'
    ' j.error_type, j.error, j.key, j.tags, j.group_key from pgqueue.job_dead j'
    ' where ($1 is null or j.finished_at <= $1 and (j.finished_at, j.id) < ($1, coalesce($2, 0))) and %s'
    ' order by j.finished_at desc, j.id desc limit %s', pgqueue.job_filter(filter), batch) using before_at, before_id;
end
$$;
comment on function pgqueue.list_dead is 'A page of the dead letters that match a filter, those that died last first.';
