-- release_task: jobs that were parked because their task was paused, or its circuit open, can be claimed again.
--
-- They keep their rank, unless the lane's hint has passed it. Returns how many; call it again while it is p_limit.
--
-- Moves blocked → pending. Locks the rows, skipping those that others hold. Raises nothing.
-- Called by resume_task, count_outcomes, sweep_limits; not for users.
create or replace function pgqueue.release_task(p_task text, p_limit integer) returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_queues text[];
  v_n      integer;
begin
  with freed as (
    update pgqueue.job_live j set status = 'pending', waits_for = null,
      rank_at = greatest(j.rank_at, (select max(l.hint) from pgqueue.lane l where l.queue = j.queue and l.priority = j.priority))
    where j.ctid = any (array(select s.ctid from pgqueue.job_live s where s.task = p_task and s.waits_for = 'task'
                              order by s.queue, s.rank_at limit p_limit for update skip locked))
    returning j.queue)
  select count(*), array_agg(distinct f.queue) into v_n, v_queues from freed f;
  perform pgqueue.wake(q) from unnest(v_queues) q;
  return v_n;
end
$$;
comment on function pgqueue.release_task is 'Brings back the parked jobs of a task. Not for users.';
