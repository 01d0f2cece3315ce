-- progress: what a running handler says of itself. False: refused, the lease is gone.
--
-- Moves nothing. Locks the row. Raises PQ006 if the report is bigger than 16 KiB.
-- Called by workers.
create or replace function pgqueue.progress(p_worker_id bigint, p_id bigint, p_token integer, p_progress jsonb) returns boolean
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  if pg_column_size(p_progress) > 16384 then
    raise exception using errcode = 'PQ006', message = format('progress of %s bytes: at most 16384', pg_column_size(p_progress));
  end if;
  update pgqueue.job_live j set progress = p_progress
    where j.id = p_id and j.token = p_token and j.worker_id + 0 = p_worker_id;
  return found;
end
$$;
comment on function pgqueue.progress is 'Stores what a running handler says of its progress; false when its lease is gone.';
