-- group_room: for groups that the caller has locked, how many more of their jobs may get a slot, and how many may start.
--
--   slots    jobs that hold one: running, the next in line, waiting for a retry that holds the group
--   waiting  those of them that are in line (or will be, when the rate lets them)
--   parked   there are jobs that wait for a slot or for their turn
--   room     how many parked jobs may come into line: group_max_running − slots; of a fair queue, and of one with a
--            group rate, no more than one turn (one burst) at a time
--   tokens   how many may start now, by the group's rate; null: any number
--   next_at  when the next may start
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by claim_gated, grant_groups; not for users.
create or replace function pgqueue.group_room(p_queue text, p_groups text[])
returns table (group_key text, slots integer, waiting integer, parked boolean, room integer, tokens integer, next_at timestamptz, stopped boolean)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
  v_now   timestamptz := clock_timestamp();
  v_queue pgqueue.queue%rowtype;
  v_many  constant integer := 10000;
begin
  select q.* into v_queue from pgqueue.queue q where q.queue = p_queue;
  return query
    select g.group_key, s.slots, s.waiting, p.parked,
      greatest(0, case when g.paused_at is not null and coalesce(g.paused_until > v_now, true) then 0 else least(
        coalesce(v_queue.group_max_running - s.slots, v_many),
        case when v_queue.fair then 1 - s.waiting end,
        case when v_queue.group_rate is not null then
          coalesce(v_queue.group_rate_burst, greatest(1, floor(v_queue.group_rate * 0.1 / v_queue.group_rate_seconds)::integer)) - s.waiting end) end),
      case when g.not_before > v_now then 0 else t.tokens end,
      greatest(g.not_before, t.next_at, v_now),
      g.paused_at is not null and coalesce(g.paused_until > v_now, true)
    from unnest(p_groups) u (k)
    cross join lateral (
      select k.* from pgqueue.queue_group k where k.queue = p_queue and k.group_key = u.k offset 0) g  -- see lock_groups
    cross join lateral (
      select count(*)::integer as slots,
             (count(*) filter (where j.status = 'pending' or j.status = 'scheduled' and j.attempt = 0))::integer as waiting
      from pgqueue.job_live j where j.queue = p_queue and j.group_key = g.group_key and j.holds_slot) s
    cross join lateral (
      select exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.group_key = g.group_key and j.waits_for = 'group') as parked) p
    left join lateral (
      select f.* from pgqueue.free_tokens(g.full_at, v_now, v_queue.group_rate, v_queue.group_rate_seconds, v_queue.group_rate_burst) f
      where v_queue.group_rate is not null) t on true;
end
$$;
comment on function pgqueue.group_room is 'How many more jobs of locked groups may get a slot. Not for users.';
