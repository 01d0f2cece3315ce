-- retry_many: retries the dead (or cancelled) jobs that match every given filter, one batch a call.
--
-- Call it again with after_id => last_id until last_id is null. A retried job is no longer dead, so a run that
-- is killed midway or repeated retries nothing twice. spread puts the new start times evenly at random into that
-- interval, so that a recovering service is not hit by all of them at once. skipped: their key is taken.
--
-- Moves dead, cancelled → pending or scheduled; blocked, as retry. Locks the flows of the batch, and the batch, skipping what others hold. Raises PQ001.
-- Called by operators.
create or replace function pgqueue.retry_many(
  queue text default null, task text default null, status text default 'dead', error_type text default null,
  error text default null, tag text default null, finished_after timestamptz default null,
  finished_before timestamptz default null, spread interval default '0', after_id bigint default 0, batch integer default 1000,
  fingerprint text default null, group_key text default null)
returns table (retried integer, skipped integer, last_id bigint)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_job   pgqueue.job%rowtype;
  v_ids   bigint[];
  v_flows bigint[];
  v_told  bigint[] := '{}';
begin
  if retry_many.status is null or retry_many.status not in ('dead', 'cancelled') then
    raise exception using errcode = 'PQ001', message = 'only dead or cancelled jobs can be retried';
  elsif spread is null or spread not between '0' and '3650 days' or batch is null or batch not between 1 and 100000 then
    raise exception using errcode = 'PQ001', message = 'spread must be between 0 and 3650 days, batch between 1 and 100000';
  end if;
  retried := 0;
  skipped := 0;
  v_ids := array(
    select j.id from pgqueue.job j
    where j.id > coalesce(after_id, 0) and j.status = retry_many.status
      and (retry_many.queue is null or j.queue = retry_many.queue)
      and (retry_many.task is null or j.task = retry_many.task)
      and (retry_many.error_type is null or j.error_type = retry_many.error_type)
      and (retry_many.error is null or position(retry_many.error in j.error) > 0)
      and (retry_many.fingerprint is null or pgqueue.fingerprint(j.error_type, j.error) = retry_many.fingerprint)
      and (retry_many.group_key is null or j.group_key = retry_many.group_key)
      and (tag is null or tag = any (j.tags))
      and (finished_after is null or j.finished_at >= finished_after)
      and (finished_before is null or j.finished_at < finished_before)
    order by j.id limit batch);
  last_id := v_ids[cardinality(v_ids)];
  -- A flow comes before the finished jobs in it: see lock_flows.
  v_flows := pgqueue.lock_flows(v_ids);
  for v_job in
    select j.* from pgqueue.job j where j.id = any (v_ids) and j.status = retry_many.status
      and (j.flow_id is null or j.flow_id = any (v_flows) or not exists (select 1 from pgqueue.flow f where f.id = j.flow_id))
    order by j.id for update skip locked
  loop
    if pgqueue.revive(v_job, case when spread > '0' then clock_timestamp() + random() * spread end) then
      retried := retried + 1;
      if v_job.flow_id is not null then v_told := v_told || v_job.id; end if;
    else
      skipped := skipped + 1;
    end if;
  end loop;
  if cardinality(v_told) > 0 then perform pgqueue.resume_children(v_told); end if;
  return next;
end
$$;
comment on function pgqueue.retry_many is 'Retries one batch of the dead or cancelled jobs that match; repeat with after_id => last_id.';
