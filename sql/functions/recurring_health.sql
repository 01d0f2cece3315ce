-- recurring_health: of each recurring job that is neither retired nor paused: its state, as in recurring_status, and how long ago
-- a job of it last succeeded.
--
-- The last twenty jobs are looked at. If none of them succeeded it has been longer than since the first of them, and that is what
-- is said; a job whose row is gone (its queue keeps none) counts as one that did. Null: it never had a job that ended.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by operators and readers: `pgqueue metrics`.
create or replace function pgqueue.recurring_health() returns table (name text, state text, success_age_seconds double precision)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
  return query
    select s.name, s.state, date_part('epoch', clock_timestamp() - coalesce(
             (select coalesce(l.finished_at, l.fired_at) from (
                select r.fired_at, r.due_at, j.status, j.finished_at
                from (select h.* from pgqueue.recurring_run h where h.name = s.name and h.job_id is not null order by h.due_at desc limit 20) r
                left join lateral (select k.status, k.finished_at from pgqueue.job k where k.id = r.job_id) j on true
                order by r.due_at desc) l
              where coalesce(l.status = 'completed', true) limit 1),
             (select min(r.fired_at) from (
                select h.fired_at, h.job_id from pgqueue.recurring_run h where h.name = s.name and h.job_id is not null order by h.due_at desc limit 20) r
              where not exists (select 1 from pgqueue.job_live j where j.id = r.job_id))))
    from pgqueue.recurring_status s where s.state not in ('retired', 'paused');
end
$$;
comment on function pgqueue.recurring_health is 'The state of each recurring job, and how long ago it last succeeded.';
