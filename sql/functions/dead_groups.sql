-- dead_groups: dead letters by task and kind of error (see fingerprint), the biggest group first; of the newest `most`.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by operators and readers.
create or replace function pgqueue.dead_groups(filter jsonb default '{}', most integer default 50000)
returns table (queue text, task text, fingerprint text, error_type text, error text, jobs bigint, first_at timestamptz,
               last_at timestamptz, last_id bigint)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
#variable_conflict use_column
begin
  -- First by the message as it stands: a fingerprint costs 10 µs, and most messages come again and again.
  return query execute format(
    'select m.queue, m.task, m.fingerprint, m.error_type, (array_agg(m.error order by m.last_at desc))[1], sum(m.jobs)::bigint,'
    ' min(m.first_at), max(m.last_at), max(m.last_id)'
    ' from (select s.queue, s.task, s.error_type, s.error, pgqueue.fingerprint(s.error_type, s.error) as fingerprint, count(*) as jobs,'
    '         min(s.finished_at) as first_at, max(s.finished_at) as last_at, max(s.id) as last_id'
    '       from (select j.id, j.queue, j.task, j.error_type, left(j.error, 300) as error, j.finished_at from pgqueue.job_dead j'
    '             where %s order by j.finished_at desc limit %s) s'
    '       group by s.queue, s.task, s.error_type, s.error) m'
    ' group by m.queue, m.task, m.fingerprint, m.error_type order by 6 desc, 8 desc',
    pgqueue.job_filter(filter), coalesce(greatest(most, 1), 50000));
end
$$;
comment on function pgqueue.dead_groups is 'Dead letters by task and kind of error, the biggest group first.';
