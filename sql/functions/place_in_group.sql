-- place_in_group: how many jobs of its group come before a job that waits for a slot or for its turn, in words; counted to ten
-- thousand, which is an answer, too. Nothing for a job without an id, which stands for its queue.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why's reasons; not for users.
create or replace function pgqueue.place_in_group(p_job pgqueue.job) returns text
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_boost interval;
  v_ahead bigint;
begin
  if p_job.id is null then return ''; end if;
  select make_interval(secs => coalesce(q.boost_seconds, s.boost_seconds)) into v_boost
    from pgqueue.setting s left join pgqueue.queue q on q.queue = p_job.queue;
  select count(*) into v_ahead from (
    select 1 from (select distinct l.priority from pgqueue.lane l where l.queue = p_job.queue and l.priority is not null) l
    cross join lateral (
      (select 1 from pgqueue.job_live j where j.queue = p_job.queue and j.group_key = p_job.group_key and j.priority = l.priority
         and j.waits_for = 'group' and j.rank_at < p_job.rank_at + (l.priority - p_job.priority) * v_boost limit 10000)
      union all
      (select 1 from pgqueue.job_live j where j.queue = p_job.queue and j.group_key = p_job.group_key and j.priority = l.priority
         and j.status = 'pending' and not j.holds_slot and j.rank_at < p_job.rank_at + (l.priority - p_job.priority) * v_boost limit 10000)) a
    limit 10000) c;
  return case v_ahead when 0 then '; of those of the group that wait it is the next' when 1 then '; 1 other of the group comes before it'
    else format('; %s others of the group come before it', case when v_ahead < 10000 then v_ahead::text else 'more than 10,000' end) end;
end
$$;
comment on function pgqueue.place_in_group is 'How many jobs of its group come before a job, in words. Not for users.';
