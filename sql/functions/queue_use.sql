-- queue_use: what a queue is needed for, in words; null if nothing would miss it. Its settings are not asked about.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by delete_queue and forget_queues; not for users.
create or replace function pgqueue.queue_use(p_queue text) returns text
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_name text;
begin
  -- One kind at a time: each has an index of its own. (parents: the jobs of flows.)
  if exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.status = 'pending')
     or exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.status = 'scheduled')
     or exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'group')
     or exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'parents')
     or exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'task')
     or exists (select 1 from pgqueue.job_live j where j.queue = p_queue and j.status = 'running') then
    return 'jobs of it wait or run';
  end if;
  select w.name into v_name from pgqueue.worker w
    where p_queue = any (w.queues) and w.lost_at is null and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds)
    order by w.id limit 1;
  if found then return format('worker %s serves it', v_name); end if;
  select r.name into v_name from pgqueue.recurring_job r where r.queue = p_queue order by r.name limit 1;
  if found then return format('the recurring job %s is for it', v_name); end if;
  return null;
end
$$;
comment on function pgqueue.queue_use is 'What a queue is needed for. Not for users.';
