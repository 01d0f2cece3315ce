-- lock_waiting: locks a job that waits for its parents, and its flow before it, as lock_flows() wants it. False: it waits
-- for no parents, and nothing is locked.
--
-- Whether it still waits is known only under the flow's lock. If it does not, that lock must go again before the job's is
-- asked for (whoever completes the job holds that one and wants the flow's): hence the exception.
--
-- Moves nothing. Locks the flow and the row. Raises nothing.
-- Called by cancel; not for users.
create or replace function pgqueue.lock_waiting(p_id bigint) returns boolean
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  while exists (select 1 from pgqueue.job_live j where j.id = p_id and j.waits_for = 'parents') loop
    begin
      perform pgqueue.lock_flows(array[p_id]);
      perform 1 from pgqueue.job_live j where j.id = p_id and j.waits_for = 'parents' for update;
      if found then return true; end if;
      raise no_data_found;
    exception when no_data_found then
      null;
    end;
  end loop;
  return false;
end
$$;
comment on function pgqueue.lock_waiting is 'Locks a job that waits for its parents. Not for users.';
