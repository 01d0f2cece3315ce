-- regate: writes into the queue's row whether claims must look at limits (gated) and at groups (grouped), and gives it what
-- its limits need: a gate, and counters for its depth.
--
-- Jobs that run already, and were claimed without looking, get their slots; so a new limit counts them.
--
-- Moves nothing. Locks the queue's row. Raises nothing.
-- Called by set_queue, pause_group, resume_group, throttle, sweep_limits; not for users.
create or replace function pgqueue.regate(p_queue text) returns void
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off
as $$
declare
  v_queue   pgqueue.queue%rowtype;
  v_grouped boolean;
  v_gated   boolean;
begin
  loop  -- somebody may be deleting it
    select q.* into v_queue from pgqueue.queue q where q.queue = p_queue for update;
    exit when found;
    perform pgqueue.ensure_queue(p_queue);
  end loop;
  v_grouped := v_queue.fair or v_queue.group_max_running is not null or v_queue.group_rate is not null
    or exists (select 1 from pgqueue.queue_group g where g.queue = p_queue and (g.paused_at is not null or g.not_before > '-infinity'));
  v_gated := v_grouped or v_queue.max_running is not null or v_queue.rate is not null
    or exists (select 1 from pgqueue.queue_gate g where g.queue = p_queue and g.not_before > clock_timestamp());
  if v_gated or v_queue.max_depth is not null then
    insert into pgqueue.queue_gate (queue) values (p_queue) on conflict (queue) do nothing;
  end if;
  if v_queue.max_depth is not null and v_queue.came is null then
    -- Unlogged, as the one for wake(): after a crash they start anew, and the next count puts that right.
    execute format('create unlogged sequence if not exists pgqueue.came_%s minvalue 0 start 0', v_queue.id);
    execute format('create unlogged sequence if not exists pgqueue.went_%s minvalue 0 start 0', v_queue.id);
    v_queue.came := format('pgqueue.came_%s', v_queue.id)::regclass;
    v_queue.went := format('pgqueue.went_%s', v_queue.id)::regclass;
  elsif v_queue.max_depth is null then
    v_queue.came := null;
    v_queue.went := null;
  end if;
  if (v_queue.gated, v_queue.grouped) is distinct from (v_gated, v_grouped)
     or (select (q.came, q.went) is distinct from (v_queue.came, v_queue.went) from pgqueue.queue q where q.queue = p_queue) then
    update pgqueue.queue q set gated = v_gated, grouped = v_grouped, came = v_queue.came, went = v_queue.went where q.queue = p_queue;
  end if;
  if v_queue.max_running is not null then
    update pgqueue.job_live j set holds_slot = true
      where j.worker_id is not null and j.status = 'running' and j.queue = p_queue and not j.holds_slot;
  end if;
end
$$;
comment on function pgqueue.regate is 'Notes whether claims must look at a queue''s limits. Not for users.';
