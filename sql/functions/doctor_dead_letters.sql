-- doctor_dead_letters: do more jobs die than usual?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_dead_letters() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'warning', format('queue %s: %s jobs died in the last hour; in the day before it were %s an hour', h.queue, h.dead, round(h.usual, 1)),
           format('pgqueue dead groups --queue %s --newer 1h', h.queue)
    from (select d.queue, sum(d.dead) filter (where d.at > clock_timestamp() - interval '1 hour') as dead,
                 coalesce(sum(d.dead) filter (where d.at <= clock_timestamp() - interval '1 hour'), 0) / 24 as usual
          from (select m.queue, m.at, m.dead from pgqueue.metric m where m.span_seconds = 60 and m.at > clock_timestamp() - interval '25 hours'
                union all select t.queue, t.at, t.jobs from pgqueue.tally t where t.outcome = 'dead' and t.at > clock_timestamp() - interval '25 hours') d
          group by d.queue) h
    where h.dead >= 10 and h.dead > 3 * h.usual;
  if not found then
    return query select 'ok', format('%s dead letters', count(*)), null::text from (select 1 from pgqueue.job_dead limit 1000000) d;
  end if;
end
$$;
comment on function pgqueue.doctor_dead_letters is 'A check of doctor. Not for users.';
