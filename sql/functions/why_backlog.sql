-- why_backlog: what waits in the queue, how fast it goes, and when it will be empty.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why_queue; not for users.
create or replace function pgqueue.why_backlog(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_depth  bigint;
  v_next   timestamptz;
  v_rate   double precision;
  v_parked text;
begin
  v_depth := pgqueue.depth(p_job.queue, 'pending');
  select string_agg(format('%s held back by their %s', case when p.n > 10000 then 'more than 10,000' else p.n::text end, p.what), ', ') into v_parked
    from (select 'groups' as what, count(*) as n from (select 1 from pgqueue.job_live j where j.queue = p_job.queue and j.waits_for = 'group' limit 10001) g
          union all
          select 'tasks', count(*) from (select 1 from pgqueue.task t cross join lateral (
            select 1 from pgqueue.job_live j where j.task = t.task and j.queue = p_job.queue and j.waits_for = 'task' limit 10001) h limit 10001) k) p
    where p.n > 0;
  if v_depth = 0 then
    select min(j.run_at) into v_next from pgqueue.job_live j where j.queue = p_job.queue and j.status = 'scheduled';
    return query select case when v_parked is null then 'empty' else 'backlog' end, coalesce('nothing could start now; ' || v_parked, 'nothing waits')
      || case when v_next is not null then format('; the next scheduled job is due in %s', pgqueue.in_words(v_next - clock_timestamp())) else '' end, null::text;
    return;
  end if;
  select s.per_second into v_rate from pgqueue.stats(clock_timestamp() - interval '5 minutes', clock_timestamp(), of_queue => p_job.queue, by => 'queue') s;
  return query select 'backlog', format('%s jobs wait, the first of them for %s%s; %s', case when v_depth > 100000 then 'more than 100,000' else v_depth::text end,
      pgqueue.in_words(clock_timestamp() - p_job.rank_at), '; ' || v_parked,
      case when v_rate > 0 then format('%s a second have completed in the last minutes', round(v_rate::numeric, 1))
             || case when v_depth <= 100000 then format(', so without new ones it is empty in %s', pgqueue.in_words(make_interval(secs => v_depth / v_rate))) else '' end
           else 'none has completed in the last five minutes' end),
    format('pgqueue workers list --queue %s', p_job.queue);
end
$$;
comment on function pgqueue.why_backlog is 'What waits in a queue. Not for users.';
