-- why_group_turn: groups of its queue take turns, and another job of its group has the next one.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_turn(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_next bigint;
begin
  if p_job.waits_for is distinct from 'group' or not exists (select 1 from pgqueue.queue q where q.queue = p_job.queue and q.fair) then return; end if;
  select j.id into v_next from pgqueue.job j
    where j.queue = p_job.queue and j.group_key = p_job.group_key and j.holds_slot
      and (j.status = 'pending' or j.status = 'scheduled' and pgqueue.waits_for_rate(j))
    order by j.rank_at limit 1;
  if found then
    return query select 'group_turn', format('groups of queue %s take turns, and job %s has the next turn of group %s%s', p_job.queue, v_next, p_job.group_key,
        pgqueue.place_in_group(p_job)), format('pgqueue queues set %s fair=false', p_job.queue);
  end if;
end
$$;
comment on function pgqueue.why_group_turn is 'Reason: it is not the turn of its group. Not for users.';
