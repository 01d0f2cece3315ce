-- log: lines that a handler wrote for people to read beside its job, several at once. False: refused, the lease is gone.
--
-- Moves nothing. Locks nothing: a line that comes a moment after the end of its lease does no harm. Raises PQ001 for
-- levels other than debug, info, warning, error.
-- Called by workers.
create or replace function pgqueue.log(
  p_worker_id bigint, p_id bigint, p_token integer, p_times timestamptz[], p_levels text[], p_messages text[])
returns boolean
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_queue text;
begin
  if exists (select 1 from unnest(p_levels) l where l is null or l not in ('debug', 'info', 'warning', 'error')) then
    raise exception using errcode = 'PQ001', message = 'a log line is debug, info, warning or error';
  end if;
  select j.queue into v_queue from pgqueue.job_live j
    where j.id = p_id and j.token = p_token and j.worker_id + 0 = p_worker_id;
  if not found then return false; end if;
  insert into pgqueue.job_log (job_id, logged_at, token, queue, level, message)
    select p_id, coalesce(u.at, clock_timestamp()), p_token, v_queue, u.level, left(coalesce(u.message, ''), 10000)
    from unnest(p_times, p_levels, p_messages) u (at, level, message);
  return true;
end
$$;
comment on function pgqueue.log is 'Stores lines that a handler wrote; false when its lease is gone.';
