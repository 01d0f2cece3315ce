-- lock_claimed: the running jobs among the given that this worker still holds, locked, by ascending id.
-- What is missing from the answer was refused by the fence. The plan is pinned as in complete.
--
-- Moves nothing. Locks the rows by ascending id. Raises nothing.
-- Called by fail, release, snooze, cancel_claimed; not for users.
create or replace function pgqueue.lock_claimed(p_worker_id bigint, p_ids bigint[], p_tokens integer[])
returns setof pgqueue.job
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  return query
    select j.* from (select distinct * from unnest(p_ids, p_tokens) u (id, token) order by u.id) u
    join pgqueue.job_live j on j.id between u.id and u.id and j.token = u.token and j.worker_id + 0 = p_worker_id
    for update of j;
end
$$;
comment on function pgqueue.lock_claimed is 'Locks those of the given jobs whose lease the worker still holds. Not for users.';
