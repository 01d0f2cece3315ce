-- lane_head: when the first job of a lane, from a time on, became claimable; for the lane of scheduled jobs: when
-- the first of them is due.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by refresh_hints; not for users.
create or replace function pgqueue.lane_head(p_queue text, p_priority smallint, p_from timestamptz) returns timestamptz
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_head timestamptz;
begin
  if p_priority is null then
    select j.run_at into v_head from pgqueue.job_live j
      where j.queue = p_queue and j.status = 'scheduled' and j.run_at >= p_from order by j.run_at limit 1;
  else
    select j.rank_at into v_head from pgqueue.job_live j
      where j.queue = p_queue and j.priority = p_priority and j.status = 'pending' and j.rank_at >= p_from
      order by j.rank_at limit 1;
  end if;
  return v_head;
end
$$;
comment on function pgqueue.lane_head is 'The first rank_at of a lane from a time on. Not for users.';
