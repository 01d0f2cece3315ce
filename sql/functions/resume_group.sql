-- resume_group: ends a pause of the group, or what a handler that was rate limited brought upon it (see throttle). False: there
-- was neither.
--
-- Moves blocked → pending. Locks the group, and those of its jobs that wait for the end of the throttle, skipping what others
-- hold. Raises nothing.
-- Called by operators.
create or replace function pgqueue.resume_group(queue text, group_key text) returns boolean
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  v_group pgqueue.queue_group%rowtype;
begin
  select g.* into v_group from pgqueue.queue_group g where g.queue = resume_group.queue and g.group_key = resume_group.group_key for update;
  if v_group.paused_at is null and not coalesce(v_group.not_before > clock_timestamp(), false) then return false; end if;
  update pgqueue.queue_group g set paused_at = null, paused_until = null, paused_reason = null, not_before = '-infinity'
    where g.queue = resume_group.queue and g.group_key = resume_group.group_key;
  -- What had its turn meanwhile was put off to the very end of the throttle.
  update pgqueue.job_live j set run_at = clock_timestamp(), rank_at = clock_timestamp() where j.ctid = any (array(
    select s.ctid from pgqueue.job_live s
    where s.queue = resume_group.queue and s.group_key = resume_group.group_key and s.holds_slot and s.status = 'scheduled'
      and s.run_at = v_group.not_before for update skip locked));
  perform pgqueue.grant_groups(resume_group.queue, array[resume_group.group_key]);
  perform pgqueue.regate(resume_group.queue);
  perform pgqueue.wake(resume_group.queue);
  return true;
end
$$;
comment on function pgqueue.resume_group is 'Ends the pause of a group, or its throttle.';
