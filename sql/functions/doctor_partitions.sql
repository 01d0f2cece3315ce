-- doctor_partitions: are there days for what will finish, and have old days gone?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_partitions() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp set timezone = 'UTC'
as $$
#variable_conflict use_column
begin
  return query
    select 'warning', format('%s has no partition for %s', n.parent, n.day), 'a worker makes them every minute; or: select pgqueue.ensure_partitions()'
    from (select t.parent, (current_date + 1)::date as day from (values ('job_done'), ('job_attempt'), ('job_step'), ('job_log'), ('event')) t (parent)) n
    where to_regclass(format('pgqueue.%s_%s', n.parent, to_char(n.day, 'YYYYMMDD'))) is null
    union all
    select 'warning', format('%s days of job_done are over and not dropped, the oldest %s', count(*), min(right(c.relname, 8))),
           'a worker drops them every minute unless a lock keeps it off: see snapshots; or: select pgqueue.prune()'
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgqueue.job_done'::regclass and c.relname ~ '^job_done_\d{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') < current_date - 1
    having count(*) > 0
    union all
    select 'warning', format('%s days of event are over and not dropped, the oldest %s', count(*), min(right(c.relname, 8))), 'select pgqueue.prune()'
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgqueue.event'::regclass and c.relname ~ '^event_\d{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') < current_date - 2
    having count(*) > 0
    union all
    select 'warning', 'the default partition job_done_default is not empty: days were missing when jobs finished, or they are kept for over 100 days',
           'select pgqueue.ensure_partitions()'
    where exists (select 1 from pgqueue.job_done_default)
    union all
    -- What it holds of days that are over needs nobody: it goes with them.
    select 'warning', format('the default partition %s holds rows of today: its day was missing when they were written', d.name),
           'select pgqueue.ensure_partitions()'
    from (select 'job_attempt_default' as name where exists (select 1 from pgqueue.job_attempt_default a where a.finished_at >= current_date)
          union all select 'job_step_default' where exists (select 1 from pgqueue.job_step_default a where a.saved_at >= current_date)
          union all select 'job_log_default' where exists (select 1 from pgqueue.job_log_default a where a.logged_at >= current_date)
          union all select 'event_default' where exists (select 1 from pgqueue.event_default a where a.at >= current_date)) d;
  if not found then return query select 'ok', 'days are there, old ones are gone, the default partitions are empty', null::text; end if;
end
$$;
comment on function pgqueue.doctor_partitions is 'A check of doctor. Not for users.';
