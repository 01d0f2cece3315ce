-- refresh_hints: keeps claims fast while somebody holds a snapshot open.
--
-- While any transaction is old, the index entries of claimed jobs cannot be removed, and every claim walks over
-- them: 45 ns each, 25-30 times slower after 400,000 jobs, in every queue built on SKIP LOCKED. A lane's hint is
-- a time below which nothing is pending; claims start there. It is used only when finding the head has become
-- slow, and moved only when finding it from the hint has become slow again: each move leaves a dead row too.
--
-- What could appear below a hint is a job whose transaction commits late. It is found here and gets a new
-- rank_at. Two searches:
--   the near one, at every call, between floor and hint. The floor is a time before which nothing can appear any
--     more: at mark_at we noted the next transaction id, and since then every transaction below it has ended. A
--     long report has no transaction id, so it does not hold the floor back;
--   the full one, over everything below the hint, at most 2 % of the time. When it is fast, the snapshot is gone
--     and vacuum has been: the hint is switched off.
--
-- The row of a lane without priority does the same for scheduled jobs; what is found below it is promoted.
--
-- Moves scheduled → pending (late ones). Locks lanes and late jobs, skipping what others hold. Raises nothing.
-- Called by every worker for its queues (null: all), a few times a second; p_margin is how close to now a hint may come:
-- between it and the head of a short backlog, claims walk over what is dead. With a snapshot held and 10,000 jobs waiting the
-- rate was 0.84 of that without one at a margin of 1 s, and 1.1 at 0.3 s; a late commit was found as soon.
create or replace function pgqueue.refresh_hints(
  p_queues text[] default null, p_margin interval default '300 ms', p_slow_ms real default 1, p_step_ms real default 0.05)
returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_seen   record;
  v_lane   pgqueue.lane%rowtype;
  v_start  timestamptz;
  v_head   timestamptz;
  v_ms     double precision;
  v_on     integer := 0;
  v_found  integer;
  c_batch  constant integer := 5000;
begin
  for v_seen in select l.ctid, l.queue, l.priority, l.hint from pgqueue.lane l
                where p_queues is null or l.queue = any (p_queues) loop
    v_start := clock_timestamp();
    if v_seen.hint = '-infinity' then
      v_head := pgqueue.lane_head(v_seen.queue, v_seen.priority, '-infinity');
      v_ms := extract(epoch from clock_timestamp() - v_start) * 1000;
      continue when v_ms < p_slow_ms;
    end if;
    v_on := v_on + 1;
    -- Locked only now: a lock writes to the row, and healthy lanes should cost nothing.
    select l.* into v_lane from pgqueue.lane l where l.ctid = v_seen.ctid and l.hint = v_seen.hint for update skip locked;
    continue when not found;

    if v_seen.hint = '-infinity' then
      update pgqueue.lane l set hint = least(coalesce(v_head, v_start), v_start - p_margin), cost_ms = v_ms, checked_at = v_start,
        floor = '-infinity', mark_at = v_start, mark_xid = pg_snapshot_xmax(pg_current_snapshot())
      where l.ctid = v_seen.ctid;
      continue;
    end if;

    -- A sum, not a difference: before version 17 PostgreSQL refuses to subtract from or by infinity.
    if v_start > v_lane.checked_at + v_lane.cost_ms * 50 * interval '1 ms' then
      v_found := pgqueue.rerank(v_lane.queue, v_lane.priority, '-infinity', v_lane.hint, c_batch);
      while v_found = c_batch loop  -- what a late bulk enqueue left; the last search, which finds little, is the one timed
        v_start := clock_timestamp();
        v_found := pgqueue.rerank(v_lane.queue, v_lane.priority, '-infinity', v_lane.hint, c_batch);
      end loop;
      v_lane.checked_at := v_start;
      v_lane.cost_ms := extract(epoch from clock_timestamp() - v_start) * 1000;
      if v_lane.cost_ms < p_slow_ms then
        v_lane.hint := '-infinity';
        v_on := v_on - 1;
      end if;
    else
      -- Whether they have ended is asked before the search begins, so the search sees all that they left.
      v_head := case when v_lane.mark_xid <= pg_snapshot_xmin(pg_current_snapshot()) then v_lane.mark_at - p_margin end;
      loop
        v_found := pgqueue.rerank(v_lane.queue, v_lane.priority, v_lane.floor, v_lane.hint, c_batch);
        exit when v_found < c_batch;
      end loop;
      if v_head > v_lane.floor and extract(epoch from clock_timestamp() - v_start) * 1000 > p_step_ms then
        v_lane.floor := v_head;
        v_lane.mark_at := v_start;
        v_lane.mark_xid := pg_snapshot_xmax(pg_current_snapshot());
      end if;
    end if;

    if v_lane.hint <> '-infinity' then
      v_start := clock_timestamp();
      v_head := pgqueue.lane_head(v_lane.queue, v_lane.priority, v_lane.hint);
      if extract(epoch from clock_timestamp() - v_start) * 1000 > p_step_ms then
        v_lane.hint := greatest(v_lane.hint, least(coalesce(v_head, v_start), v_start - p_margin));
      end if;
    end if;
    update pgqueue.lane l set hint = v_lane.hint, floor = v_lane.floor, mark_at = v_lane.mark_at, mark_xid = v_lane.mark_xid,
      cost_ms = v_lane.cost_ms, checked_at = v_lane.checked_at
    where l.ctid = v_seen.ctid
      and (l.hint, l.floor, l.checked_at) is distinct from (v_lane.hint, v_lane.floor, v_lane.checked_at);
  end loop;
  return v_on;
end
$$;
comment on function pgqueue.refresh_hints is 'Moves lane hints to where the jobs are; returns how many are on.';
