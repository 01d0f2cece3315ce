-- count_depth: counts how many jobs wait in a queue with max_depth, no further than that; see admit.
--
-- Moves nothing. Locks the gate, unless somebody else has it. Raises nothing.
-- Called by sweep_limits; not for users.
create or replace function pgqueue.count_depth(p_queue text) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_start timestamptz := clock_timestamp();
  v_queue pgqueue.queue%rowtype;
  v_gate  pgqueue.queue_gate%rowtype;
  v_depth bigint;
  v_went  bigint;
begin
  select q.* into v_queue from pgqueue.queue q where q.queue = p_queue;
  select g.* into v_gate from pgqueue.queue_gate g where g.queue = p_queue for update skip locked;
  if not found or v_queue.came is null then return; end if;
  if v_gate.depth_counted_at > v_start - greatest(50 * v_gate.depth_cost_ms, 500) * interval '1 ms' then return; end if;
  v_went := coalesce(pg_sequence_last_value(v_queue.went), 0);
  perform setval(v_queue.came, 0);
  perform setval(v_queue.went, 0);
  select count(*) into v_depth from (
    (select 1 from pgqueue.job_live j where j.queue = p_queue and j.status = 'pending' limit v_queue.max_depth + 1)
    union all (select 1 from pgqueue.job_live j where j.queue = p_queue and j.status = 'scheduled' limit v_queue.max_depth + 1)
    union all (select 1 from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'group' limit v_queue.max_depth + 1)
    union all (select 1 from pgqueue.job_live j where j.queue = p_queue and j.waits_for = 'task' and j.task >= '' limit v_queue.max_depth + 1)
    limit v_queue.max_depth + 1) waiting;
  update pgqueue.queue_gate g set depth = v_depth, depth_counted_at = v_start,
    depth_cost_ms = extract(epoch from clock_timestamp() - v_start) * 1000 where g.queue = p_queue;
end
$$;
comment on function pgqueue.count_depth is 'Counts how many jobs wait in a queue with max_depth. Not for users.';
