-- why_group_full: as many jobs of its group as may run have their slot: they run, or are next in line.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_full(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_most  integer;
  v_slots integer;
  v_who   text;
begin
  if p_job.group_key is null or p_job.waits_for is distinct from 'group' and (p_job.status <> 'pending' or p_job.holds_slot) then return; end if;
  select q.group_max_running into v_most from pgqueue.queue q where q.queue = p_job.queue;
  if v_most is null then return; end if;
  -- Those that wait for a retry are why_group_retry's.
  select count(*), string_agg(h.says, ', ' order by h.n) filter (where h.n <= 3 and not h.waits)
         || case when count(*) filter (where not h.waits) > 3 then format(' and %s more', count(*) filter (where not h.waits) - 3) else '' end
    into v_slots, v_who
    from (select j.status = 'scheduled' and not pgqueue.waits_for_rate(j) as waits,
                 row_number() over (order by j.status = 'running' desc, j.status = 'pending' desc, j.started_at, j.id) as n,
                 case j.status when 'running' then format('job %s has run for %s', j.id, pgqueue.in_words(clock_timestamp() - j.started_at))
                               else format('job %s is next in line', j.id) end as says
          from pgqueue.job j where j.queue = p_job.queue and j.group_key = p_job.group_key and j.holds_slot
            and j.status in ('pending', 'scheduled', 'running')) h;
  if v_slots >= v_most and v_who is not null then
    return query select 'group_full', format('group %s of queue %s may run %s at a time: %s%s', p_job.group_key, p_job.queue,
        case v_most when 1 then '1 job' else v_most || ' jobs' end, v_who, pgqueue.place_in_group(p_job)),
      format('pgqueue queues set %s group_max_running=%s', p_job.queue, v_most + 1);
  end if;
end
$$;
comment on function pgqueue.why_group_full is 'Reason: its group has no slot. Not for users.';
