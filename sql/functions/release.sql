-- release: gives jobs back that were claimed but not run, or not to their end; the attempt is refunded.
-- Returns the ids that were refused.
--
-- Moves running → pending (cancelled, if that was asked for meanwhile). Locks the rows by ascending id, then their groups and flows. Raises nothing.
-- Called by workers that shut down or took too much; by retire_worker.
create or replace function pgqueue.release(p_worker_id bigint, p_ids bigint[], p_tokens integer[]) returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_job  pgqueue.job;
  v_held pgqueue.job[] := array(select j from pgqueue.lock_claimed(p_worker_id, p_ids, p_tokens) j);
begin
  foreach v_job in array v_held loop
    if v_job.cancel_requested_at is not null then
      perform pgqueue.record_attempt(v_job, 'cancelled');
      perform pgqueue.finish(v_job.id, 'cancelled', null, null);
    else
      perform pgqueue.record_attempt(v_job, 'released', 0);
      perform pgqueue.requeue(v_job, 0, true);
    end if;
  end loop;
  perform pgqueue.leave_groups(array(select h.queue from unnest(v_held) h), array(select h.group_key from unnest(v_held) h), p_ran => true);
  perform pgqueue.leave_flows(array(select h.id from unnest(v_held) h where h.flow_id is not null));
  return array(select u from unnest(p_ids) u where not exists (select 1 from unnest(v_held) h where h.id = u) order by u);
end
$$;
comment on function pgqueue.release is 'Gives claimed jobs back, attempt refunded: running → pending. Returns the refused ids.';
