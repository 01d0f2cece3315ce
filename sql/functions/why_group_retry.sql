-- why_group_retry: a job of its group waits for its retry, and holds the slot meanwhile.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_group_retry(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_most  integer;
  v_slots integer;
  v_job   pgqueue.job%rowtype;
begin
  if p_job.group_key is null or p_job.waits_for is distinct from 'group' and (p_job.status <> 'pending' or p_job.holds_slot) then return; end if;
  select q.group_max_running into v_most from pgqueue.queue q where q.queue = p_job.queue;
  select count(*) into v_slots from pgqueue.job_live j where j.queue = p_job.queue and j.group_key = p_job.group_key and j.holds_slot;
  if v_most is null or v_slots < v_most then return; end if;
  select j.* into v_job from pgqueue.job j
    where j.queue = p_job.queue and j.group_key = p_job.group_key and j.holds_slot and j.status = 'scheduled' and not pgqueue.waits_for_rate(j)
    order by j.run_at limit 1;
  if found then
    return query select 'group_retry', format('job %s of its group %s runs again in %s and holds %s meanwhile%s%s', v_job.id, p_job.group_key,
        pgqueue.in_words(v_job.run_at - clock_timestamp()), case v_most when 1 then 'the slot' else 'one of ' || v_most || ' slots' end,
        ' (' || concat_ws(': ', v_job.error_type, left(v_job.error, 100)) || ')', pgqueue.place_in_group(p_job)),
      format('pgqueue jobs cancel %s   # or, so that retries step aside from now on: pgqueue queues set %s group_on_retry=step_aside', v_job.id, p_job.queue);
  end if;
end
$$;
comment on function pgqueue.why_group_retry is 'Reason: a retry holds the slot of its group. Not for users.';
