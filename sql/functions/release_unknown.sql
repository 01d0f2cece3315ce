-- release_unknown: gives back the jobs that the database says a worker runs, but that the worker does not know of: the
-- answer to its claim was lost with a connection. Its heartbeat would otherwise keep them leased for ever. Returns how many.
--
-- The worker calls it between two claims, never beside one: a claim whose answer is still under way is not known yet.
--
-- Moves running → pending, attempt refunded. Locks the rows by ascending id. Raises nothing.
-- Called by workers, after a lost connection and now and then.
create or replace function pgqueue.release_unknown(p_worker_id bigint, p_known bigint[]) returns integer
language plpgsql volatile security definer set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
declare
  v_ids    bigint[];
  v_tokens integer[];
begin
  select array_agg(j.id order by j.id), array_agg(j.token order by j.id) into v_ids, v_tokens
    from pgqueue.job_live j
    where j.worker_id = p_worker_id and j.status = 'running' and j.id <> all (coalesce(p_known, '{}'));
  if v_ids is null then return 0; end if;
  return cardinality(v_ids) - cardinality(pgqueue.release(p_worker_id, v_ids, v_tokens));
end
$$;
comment on function pgqueue.release_unknown is 'Gives back the jobs of a worker that the worker does not know of.';
