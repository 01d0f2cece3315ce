-- leave_groups: jobs of these groups have given their slots back, or ended: the next ones get them.
--
-- p_ran: they ran. Where groups only take turns, or have a rate, the next one was let into line when they were claimed.
--
-- Locks after the change, not before: a claim that parks a job because it still counted our slot holds the lock until
-- its commit, and we find the job that it parked.
--
-- Moves blocked → pending or scheduled. Locks the groups in sorted order, waiting; called last, when all jobs of the
-- statement are locked. Raises nothing.
-- Called by whatever ends a claim, by cancel and by sweep; not for users.
create or replace function pgqueue.leave_groups(p_queues text[], p_groups text[], p_ran boolean default false) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  v_queue  text;
  v_groups text[];
begin
  for v_queue, v_groups in
    select u.queue, array_agg(distinct u.group_key) from unnest(p_queues, p_groups) u (queue, group_key)
    join pgqueue.queue q on q.queue = u.queue and q.grouped
    where u.group_key is not null and not (p_ran and q.group_max_running is null) group by u.queue order by u.queue
  loop
    v_groups := pgqueue.lock_groups(v_queue, v_groups, true);
    -- Asked in a statement of its own: it must see what was committed while we waited.
    v_groups := array(select u.g from unnest(v_groups) u (g) where exists (
      select 1 from pgqueue.job_live j where j.queue = v_queue and j.group_key = u.g and j.waits_for = 'group'));
    if v_groups <> '{}' and pgqueue.grant_groups(v_queue, v_groups) > 0 then
      perform pgqueue.wake(v_queue);
    end if;
  end loop;
end
$$;
comment on function pgqueue.leave_groups is 'Passes slots that came free on to the next jobs of their groups. Not for users.';
