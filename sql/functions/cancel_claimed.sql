-- cancel_claimed: the worker stopped these jobs, because somebody asked for it or the handler itself said so.
-- Returns the ids that were refused.
--
-- Moves running → cancelled. Locks the rows by ascending id, then their groups and flows. Raises nothing.
-- Called by workers.
create or replace function pgqueue.cancel_claimed(p_worker_id bigint, p_ids bigint[], p_tokens integer[], p_reasons text[] default null)
returns bigint[]
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_job    pgqueue.job;
  v_reason text;
  v_held   pgqueue.job[] := array(select j from pgqueue.lock_claimed(p_worker_id, p_ids, p_tokens) j);
begin
  foreach v_job in array v_held loop
    v_reason := coalesce(left(p_reasons[array_position(p_ids, v_job.id)], 4000),
                         case when v_job.cancel_requested_at is not null then v_job.error end, 'cancelled');
    perform pgqueue.record_attempt(v_job, 'cancelled', null, 'Cancelled', v_reason);
    perform pgqueue.finish(v_job.id, 'cancelled', 'Cancelled', v_reason);
  end loop;
  perform pgqueue.leave_groups(array(select h.queue from unnest(v_held) h), array(select h.group_key from unnest(v_held) h), p_ran => true);
  perform pgqueue.leave_flows(array(select h.id from unnest(v_held) h where h.flow_id is not null));
  return array(select u from unnest(p_ids) u where not exists (select 1 from unnest(v_held) h where h.id = u) order by u);
end
$$;
comment on function pgqueue.cancel_claimed is 'The worker stopped these jobs: running → cancelled. Returns the refused ids.';
