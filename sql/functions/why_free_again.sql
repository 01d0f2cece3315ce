-- why_free_again: what it was parked for is over, and nobody has looked yet.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why; not for users.
create or replace function pgqueue.why_free_again(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  if p_job.waits_for = 'group' and not exists (
       select 1 from pgqueue.group_room(p_job.queue, array[p_job.group_key]) r where r.stopped or r.room = 0 or r.tokens < 1) then
    return query select 'free_again', format('group %s has room again: the next claim or sweep takes up the first that waits%s', p_job.group_key,
      pgqueue.place_in_group(p_job)), 'pgqueue sweep';
  elsif p_job.waits_for = 'task' and not exists (
       select 1 from pgqueue.task t where t.task = p_job.task
       and (t.circuit <> 'closed' or t.paused_at is not null and coalesce(t.paused_until > clock_timestamp(), true))) then
    return query select 'free_again', format('task %s goes on again: the next sweep takes it up', p_job.task), 'pgqueue sweep';
  end if;
end
$$;
comment on function pgqueue.why_free_again is 'Reason: what it was parked for is over. Not for users.';
