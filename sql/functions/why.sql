-- why: why a job does not run, or why it ended as it did; the first row is the reason, further rows hold besides. remedy is
-- the command that changes it, or null.
--
-- Each reason is a function of its own, named here in the order in which they count, that returns no row when it does not
-- hold. A new mechanism adds a function and its name.
--
-- Moves nothing. Locks nothing. Raises PQ002.
-- Called by operators and readers.
create or replace function pgqueue.why(id bigint) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_job    pgqueue.job%rowtype;
  v_reason text;
begin
  -- Twice: it may just be moving from one leaf to another.
  for i in 1 .. 2 loop
    select j.* into v_job from pgqueue.job j where j.id = why.id;
    exit when found;
  end loop;
  if v_job.id is null then
    raise exception using errcode = 'PQ002', message = format('there is no job %s, or it has been pruned', coalesce(why.id::text, 'null'));
  end if;
  foreach v_reason in array '{why_ended, why_shed, why_running, why_blocked, why_expired, why_scheduled, why_paused, why_task_paused,
      why_circuit_open, why_circuit_half_open, why_group_paused, why_group_throttled, why_group_full, why_group_retry, why_group_turn, why_group_rate,
      why_throttled, why_queue_full, why_queue_rate, why_free_again, why_unserved, why_unknown_task, why_versions, why_held, why_waiting}'::text[] loop
    return query execute format('select r.reason, r.explanation, r.remedy from pgqueue.%I($1) r', v_reason) using v_job;
  end loop;
end
$$;
comment on function pgqueue.why is 'Why a job does not run, or why it ended as it did, and what changes it.';
