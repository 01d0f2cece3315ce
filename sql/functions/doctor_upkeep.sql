-- doctor_upkeep: does somebody sweep, count and prune? Every worker does; without one, or with one that cannot, this falls behind.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_upkeep() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'broken', format('%s scheduled jobs of queue %s are overdue, the first by %s: nobody promotes them', count(*), j.queue,
             pgqueue.in_words(clock_timestamp() - min(j.run_at))), 'pgqueue sweep; then see why workers do not: their logs, `pgqueue workers list`'
    from (select j.queue, j.run_at from (select distinct l.queue from pgqueue.lane l) l cross join lateral
            (select j.queue, j.run_at from pgqueue.job_live j where j.queue = l.queue and j.status = 'scheduled'
               and j.run_at < clock_timestamp() - interval '1 minute' order by j.run_at limit 1000) j) j
      left join pgqueue.queue q on q.queue = j.queue
    group by j.queue
    union all
    select 'warning', format('%s jobs have run for over a minute since their worker was lost', count(*)), 'pgqueue sweep'
    from pgqueue.ghost_job g where coalesce(g.lost_at, g.heartbeat_at, '-infinity') < clock_timestamp() - interval '1 minute' having count(*) > 0
    union all
    select 'warning', format('metrics have not been rolled up for %s', pgqueue.in_words(clock_timestamp() - min(t.at))), 'a worker must run; or: select pgqueue.roll_up()'
    from pgqueue.tally t having min(t.at) < clock_timestamp() - interval '10 minutes';
  if not found then return query select 'ok', 'nothing is overdue', null::text; end if;
end
$$;
comment on function pgqueue.doctor_upkeep is 'A check of doctor. Not for users.';
