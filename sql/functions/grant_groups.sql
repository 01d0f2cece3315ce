-- grant_groups: hands free slots of locked groups to the jobs that were parked first: by rank and priority, as lanes are.
--
-- The slot goes to the job here, not when it is claimed: nobody can overtake it. And it overtakes nobody: in a serial group a
-- job that no claim has met yet, and that comes before it, goes first. In a fair queue the job comes to the
-- end of the line, so that groups take turns. When the group's rate lets nothing start now, it waits as scheduled for
-- the moment when it does.
--
-- Moves blocked → pending or scheduled. Locks the jobs, skipping those that others hold; the caller has locked the
-- groups. Raises nothing.
-- Called by claim_gated, leave_groups, sweep_limits; not for users.
create or replace function pgqueue.grant_groups(p_queue text, p_groups text[]) returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_fair   boolean;
  v_serial boolean;
  v_boost  interval;
  v_ids    bigint[];
  v_times  timestamptz[];
  v_now    timestamptz;
begin
  select q.fair, coalesce(q.group_max_running = 1, false), make_interval(secs => coalesce(q.boost_seconds, s.boost_seconds))
    into v_fair, v_serial, v_boost
    from pgqueue.setting s left join pgqueue.queue q on q.queue = p_queue;
  select array_agg(n.id), array_agg(g.next_at) into v_ids, v_times
    from pgqueue.group_room(p_queue, p_groups) g
    cross join lateral (
      select h.id
      from (select distinct l.priority from pgqueue.lane l where l.queue = p_queue and l.priority is not null) l
      cross join lateral (
        select j.id, j.rank_at, j.priority from pgqueue.job_live j
        where j.queue = p_queue and j.group_key = g.group_key and j.priority = l.priority and j.waits_for = 'group'
          and not (v_serial and exists (
            select 1 from pgqueue.job_live e where e.queue = p_queue and e.group_key = g.group_key and e.priority = l.priority
            and e.status = 'pending' and e.rank_at < j.rank_at and not e.holds_slot))
        order by j.rank_at limit g.room for update skip locked) h
      order by h.rank_at - h.priority * v_boost limit g.room) n
    where g.room > 0 and g.parked;
  if v_ids is null then return 0; end if;
  v_now := clock_timestamp();
  update pgqueue.job_live j set holds_slot = true, waits_for = null,
    status = case when u.next_at > v_now then 'scheduled' else 'pending' end,
    run_at = case when u.next_at > v_now then u.next_at else j.run_at end,
    rank_at = case when u.next_at > v_now then u.next_at when v_fair then v_now
      else greatest(j.rank_at, (select max(l.hint) from pgqueue.lane l where l.queue = p_queue and l.priority = j.priority)) end
  from unnest(v_ids, v_times) u (id, next_at)
  where j.id = u.id;
  return cardinality(v_ids);
end
$$;
comment on function pgqueue.grant_groups is 'Hands free slots of locked groups to their parked jobs. Not for users.';
