-- snooze: the handlers want to run later; the attempt is refunded. Returns the ids that were refused.
--
-- Moves running → scheduled (cancelled, if that was asked for meanwhile). Locks the rows by ascending id, then their groups and flows.
-- Raises PQ001 for a delay that is not between 0 and ten years.
-- Called by workers.
create or replace function pgqueue.snooze(p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_delays double precision[])
returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_job   pgqueue.job;
  v_delay double precision;
  v_held  pgqueue.job[];
begin
  if cardinality(p_delays) is distinct from cardinality(p_ids)
     or exists (select 1 from unnest(p_delays) d where d is null or d not between 0 and 315360000) then
    raise exception using errcode = 'PQ001', message = 'a snooze takes one delay for each job, from 0 to 315360000 seconds';
  end if;
  v_held := array(select j from pgqueue.lock_claimed(p_worker_id, p_ids, p_tokens) j);
  foreach v_job in array v_held loop
    v_delay := round(p_delays[array_position(p_ids, v_job.id)]::numeric, 6);
    if v_job.cancel_requested_at is not null then
      perform pgqueue.record_attempt(v_job, 'cancelled');
      perform pgqueue.finish(v_job.id, 'cancelled', null, null);
    else
      perform pgqueue.record_attempt(v_job, 'snoozed', v_delay);
      perform pgqueue.requeue(v_job, v_delay, true);
    end if;
  end loop;
  perform pgqueue.leave_groups(array(select h.queue from unnest(v_held) h), array(select h.group_key from unnest(v_held) h), p_ran => true);
  perform pgqueue.leave_flows(array(select h.id from unnest(v_held) h where h.flow_id is not null));
  return array(select u from unnest(p_ids) u where not exists (select 1 from unnest(v_held) h where h.id = u) order by u);
end
$$;
comment on function pgqueue.snooze is 'Run later, attempt refunded: running → scheduled. Returns the refused ids.';
