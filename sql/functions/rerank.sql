-- rerank: jobs that appeared below a hint get a rank_at of now (of the hint, should the clock have stepped back), so that
-- claims see them; scheduled ones are due
-- by then, and become pending.
--
-- Moves scheduled → pending. Locks the rows, skipping those that others hold. Raises nothing.
-- Called by refresh_hints; not for users.
create or replace function pgqueue.rerank(p_queue text, p_priority smallint, p_from timestamptz, p_to timestamptz, p_limit integer)
returns integer
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_n integer;
begin
  if p_priority is null then
    update pgqueue.job_live j set status = 'pending', rank_at = greatest(clock_timestamp(), p_to) where j.ctid = any (array(
      select s.ctid from pgqueue.job_live s
      where s.queue = p_queue and s.status = 'scheduled' and s.run_at >= p_from and s.run_at < p_to
      order by s.run_at limit p_limit for update skip locked));
  else
    update pgqueue.job_live j set rank_at = greatest(clock_timestamp(), p_to) where j.ctid = any (array(
      select s.ctid from pgqueue.job_live s
      where s.queue = p_queue and s.priority = p_priority and s.status = 'pending' and s.rank_at >= p_from and s.rank_at < p_to
      order by s.rank_at limit p_limit for update skip locked));
  end if;
  get diagnostics v_n = row_count;
  return v_n;
end
$$;
comment on function pgqueue.rerank is 'Brings jobs that appeared below a hint above it. Not for users.';
