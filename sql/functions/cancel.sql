-- cancel: a waiting job is cancelled at once; a running one is asked to stop, and its worker learns it by a
-- notification, else with its next heartbeat. Returns the status after the call: cancelled, running (asked), or the end it already had.
--
-- In a flow a cancelled job counts as dead: see enqueue_flow.
--
-- Moves blocked, scheduled, pending → cancelled. Locks the row, its group and its flow (of one that waits for its parents the flow
-- first); waits for a claim or a report in flight.
-- Raises PQ002 if there is no such job.
-- Called by operators and by users.
create or replace function pgqueue.cancel(id bigint, reason text default null) returns text
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  v_status text;
  v_worker bigint;
  v_queue  text;
  v_group  text;
  v_flow   bigint;
  v_waits  boolean;
begin
  -- Among the live, then among the finished; again, in case a retry brought it back between the two looks.
  for i in 1 .. 3 loop
    v_waits := pgqueue.lock_waiting(cancel.id);
    select j.status, j.queue, j.group_key, j.flow_id into v_status, v_queue, v_group, v_flow from pgqueue.job_live j
      where j.id = cancel.id and (v_waits or j.waits_for is distinct from 'parents') for update;
    if v_status = 'running' then
      update pgqueue.job_live j set cancel_requested_at = coalesce(j.cancel_requested_at, clock_timestamp()), error_type = 'Cancelled',
        error = coalesce(left(cancel.reason, 4000), case when j.cancel_requested_at is not null then j.error end, 'cancelled')
      where j.id = cancel.id returning j.worker_id into v_worker;
      -- A queue's name has no blank: workers tell this from a wake-up.
      perform pg_notify('pgqueue', 'cancel ' || v_worker);
      return v_status;
    elsif v_status is not null then
      perform pgqueue.finish(cancel.id, 'cancelled', 'Cancelled', coalesce(left(cancel.reason, 4000), 'cancelled'));
      -- What waits for its parents has no slot to give back, and groups come before flows.
      if v_group is not null and not v_waits then perform pgqueue.leave_groups(array[v_queue], array[v_group]); end if;
      if v_waits then update pgqueue.flow f set blocked = f.blocked - 1 where f.id = v_flow; end if;
      if v_flow is not null then perform pgqueue.leave_flows(array[cancel.id]); end if;
      return 'cancelled';
    end if;
    select j.status into v_status from pgqueue.job j where j.id = cancel.id and j.status in ('completed', 'cancelled', 'dead');
    if found then return v_status; end if;
  end loop;
  raise exception using errcode = 'PQ002', message = format('there is no job %s', coalesce(cancel.id::text, 'null'));
end
$$;
comment on function pgqueue.cancel is 'Cancels a waiting job at once, asks a running one to stop. Returns its status.';
