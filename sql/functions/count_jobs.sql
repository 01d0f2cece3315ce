-- count_jobs: how many jobs match a filter (see job_filter); counts to `most` and no further.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by operators and readers, before a bulk command.
create or replace function pgqueue.count_jobs(filter jsonb default '{}', most integer default 1000000) returns bigint
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set jit = off
as $$
declare
  v_n bigint;
begin
  execute format('select count(*) from (select 1 from pgqueue.job j where %s limit %s) c',
                 pgqueue.job_filter(filter), coalesce(greatest(most, 0), 0)) into v_n;
  return v_n;
end
$$;
comment on function pgqueue.count_jobs is 'How many jobs match a filter, up to a bound.';
