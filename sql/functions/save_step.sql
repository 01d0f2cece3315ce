-- save_step: remembers what a step of a running job returned, so that a retry need not run it again. False: refused, the
-- lease is gone; the step's effect may then happen again in the next attempt. A name that is there already keeps its result.
--
-- Moves nothing. Locks the job's row, so that a step and the end of its lease are in order. Raises PQ006 for a result
-- bigger than payload_max_bytes, PQ001 for a bad name.
-- Called by workers.
create or replace function pgqueue.save_step(p_worker_id bigint, p_id bigint, p_token integer, p_name text, p_result jsonb)
returns boolean
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_queue text;
  v_max   integer;
begin
  if p_name is null or length(p_name) not between 1 and 200 then
    raise exception using errcode = 'PQ001', message = 'the name of a step has 1 to 200 characters';
  end if;
  select s.payload_max_bytes into v_max from pgqueue.setting s;
  if pg_column_size(p_result) > v_max then
    raise exception using errcode = 'PQ006', message = format('result of step %L: %s bytes, at most %s', p_name, pg_column_size(p_result), v_max),
      hint = 'Store the data elsewhere and return its id.';
  end if;
  select j.queue into v_queue from pgqueue.job_live j
    where j.id = p_id and j.token = p_token and j.worker_id + 0 = p_worker_id for update;
  if not found then return false; end if;
  if not exists (select 1 from pgqueue.job_step t where t.job_id = p_id and t.name = p_name) then
    insert into pgqueue.job_step (job_id, saved_at, token, queue, name, result)
      values (p_id, clock_timestamp(), p_token, v_queue, p_name, p_result);
  end if;
  return true;
end
$$;
comment on function pgqueue.save_step is 'Remembers what a step of a running job returned; false when its lease is gone.';
