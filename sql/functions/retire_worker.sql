-- retire_worker: a worker says good-bye. What it still holds is released, without burning an attempt.
-- Returns how many jobs that were.
--
-- Moves running → pending. Locks its jobs and its row. Raises nothing.
-- Called by workers, last of all.
create or replace function pgqueue.retire_worker(p_worker_id bigint) returns integer
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_ids    bigint[];
  v_tokens integer[];
  v_refused bigint[] := '{}';
begin
  select array_agg(j.id order by j.id), array_agg(j.token order by j.id) into v_ids, v_tokens
    from pgqueue.job_live j where j.worker_id = p_worker_id and j.status = 'running';
  if v_ids is not null then v_refused := pgqueue.release(p_worker_id, v_ids, v_tokens); end if;
  delete from pgqueue.worker w where w.id = p_worker_id;
  return coalesce(cardinality(v_ids), 0) - cardinality(v_refused);
end
$$;
comment on function pgqueue.retire_worker is 'A worker says good-bye; its jobs are released.';
