-- purge: removes finished jobs of one status that match every given filter, with their attempts, steps and log lines, one batch a call.
--
-- Call it again with after_id => last_id until last_id is null; safe to repeat and to kill midway. (prune() is
-- what removes old jobs by itself; this is for operators who want them gone now.)
--
-- Moves completed, cancelled, dead → gone; what waits for them in a flow → cancelled. Locks the flows of the batch, and the batch,
-- skipping what others hold. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.purge(
  status text, queue text default null, task text default null, error_type text default null, error text default null,
  tag text default null, finished_after timestamptz default null, finished_before timestamptz default null,
  after_id bigint default 0, batch integer default 1000, fingerprint text default null, group_key text default null)
returns table (purged integer, last_id bigint)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_ids bigint[];
begin
  if purge.status is null or purge.status not in ('completed', 'cancelled', 'dead') then
    raise exception using errcode = 'PQ001', message = 'only completed, cancelled or dead jobs can be purged';
  elsif batch is null or batch not between 1 and 100000 then
    raise exception using errcode = 'PQ001', message = 'batch must be between 1 and 100000';
  end if;
  v_ids := array(
    select j.id from pgqueue.job j
    where j.id > coalesce(after_id, 0) and j.status = purge.status
      and (purge.queue is null or j.queue = purge.queue)
      and (purge.task is null or j.task = purge.task)
      and (purge.error_type is null or j.error_type = purge.error_type)
      and (purge.error is null or position(purge.error in j.error) > 0)
      and (purge.fingerprint is null or pgqueue.fingerprint(j.error_type, j.error) = purge.fingerprint)
      and (purge.group_key is null or j.group_key = purge.group_key)
      and (tag is null or tag = any (j.tags))
      and (finished_after is null or j.finished_at >= finished_after)
      and (finished_before is null or j.finished_at < finished_before)
    order by j.id limit batch);
  last_id := v_ids[cardinality(v_ids)];
  perform pgqueue.lock_flows(v_ids);
  v_ids := array(select j.id from pgqueue.job j where j.id = any (v_ids) and j.status = purge.status order by j.id for update skip locked);
  delete from pgqueue.job_attempt a where a.job_id = any (v_ids);
  delete from pgqueue.job_step a where a.job_id = any (v_ids);
  delete from pgqueue.job_log a where a.job_id = any (v_ids);
  delete from pgqueue.job j where j.id = any (v_ids) and j.status = purge.status;
  get diagnostics purged = row_count;
  perform pgqueue.prune_flows(batch, v_ids);
  return next;
end
$$;
comment on function pgqueue.purge is 'Removes one batch of finished jobs that match; repeat with after_id => last_id.';
