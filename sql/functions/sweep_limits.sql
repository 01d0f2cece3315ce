-- sweep_limits: what limits need to be looked after. One at a time; a second caller returns at once.
--
--   pauses of tasks and groups that are over end, throttles too;
--   open circuits whose time is up get a probe; jobs of tasks that are free again come back, a batch a call;
--   depths are counted, for max_depth;
--   groups, a few hundred a call, in turn: what was granted too little (a limit was raised, or lifted) is granted, rows of
--     groups that are gone are removed;
--   tasks that fail everywhere at once are reported, once: see alarm_tasks. Returned: the tasks newly found.
--
-- Moves blocked → pending or scheduled. Locks what it changes, skipping what others hold. Raises nothing.
-- Called by every worker, every second while jobs pass, else with the sweep.
create or replace function pgqueue.sweep_limits(p_limit integer default 5000, p_groups integer default 500) returns text[]
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_task   pgqueue.task%rowtype;
  v_queue  pgqueue.queue%rowtype;
  v_groups text[];
  v_from   text;
  v_probe  bigint;
  v_name   text;
begin
  p_limit := greatest(p_limit, 0);
  p_groups := greatest(p_groups, 0);
  perform 1 from pgqueue.mutex m where m.name = 'limits' for update skip locked;
  if not found then return '{}'; end if;

  for v_task in select t.* from pgqueue.task t where t.paused_at is not null or t.circuit <> 'closed' order by t.task for update skip locked loop
    if v_task.paused_until <= v_now then
      update pgqueue.task t set paused_at = null, paused_until = null, paused_reason = null where t.task = v_task.task;
    end if;
    if v_task.circuit = 'half_open' and v_task.circuit_probe is not null
       and not exists (select 1 from pgqueue.job_live j where j.id = v_task.circuit_probe and j.status <> 'scheduled') then
      v_task.circuit_probe := null;  -- cancelled, or expired: another one
    end if;
    if v_task.circuit = 'open' and v_task.circuit_probe_at <= v_now or v_task.circuit = 'half_open' and v_task.circuit_probe is null then
      select j.id into v_probe from pgqueue.job_live j where j.task = v_task.task and j.waits_for = 'task'
        order by j.queue, j.rank_at limit 1 for update skip locked;
      -- None is parked: the circuit stays as it is until one is.
      if found then
        update pgqueue.task t set circuit = 'half_open', circuit_changed_at = v_now, circuit_probe = v_probe where t.task = v_task.task;
        update pgqueue.job_live j set status = 'pending', waits_for = null,
          rank_at = greatest(j.rank_at, (select max(l.hint) from pgqueue.lane l where l.queue = j.queue and l.priority = j.priority))
          where j.id = v_probe returning j.queue into v_name;
        perform pgqueue.wake(v_name);
      end if;
    end if;
  end loop;
  -- Tasks that have parked jobs and hold them no longer, by hopping through the index.
  for v_name in
    with recursive held as (
      (select j.task from pgqueue.job_live j where j.waits_for = 'task' order by j.task limit 1)
      union all
      select (select j.task from pgqueue.job_live j where j.waits_for = 'task' and j.task > h.task order by j.task limit 1)
      from held h where h.task is not null)
    select h.task from held h where h.task is not null
      and not exists (select 1 from pgqueue.task t where t.task = h.task
                      and (t.circuit <> 'closed' or t.paused_at is not null and coalesce(t.paused_until > v_now, true)))
  loop
    perform pgqueue.release_task(v_name, p_limit);
  end loop;

  for v_queue in select q.* from pgqueue.queue q where q.gated or q.max_depth is not null
                 or exists (select 1 from pgqueue.job_live j where j.queue = q.queue and j.waits_for = 'group') order by q.queue loop
    if v_queue.max_depth is not null then perform pgqueue.count_depth(v_queue.queue); end if;
    v_groups := array(select g.group_key from pgqueue.queue_group g where g.queue = v_queue.queue
      and (g.paused_at is not null or g.not_before > '-infinity')
      and coalesce(g.paused_until <= v_now, g.paused_at is null) and g.not_before <= v_now
      order by g.group_key limit p_groups for update skip locked);
    if cardinality(v_groups) > 0 then
      update pgqueue.queue_group g set paused_at = null, paused_until = null, paused_reason = null, not_before = '-infinity'
        where g.queue = v_queue.queue and g.group_key = any (v_groups);
      if pgqueue.grant_groups(v_queue.queue, v_groups) > 0 then perform pgqueue.wake(v_queue.queue); end if;
    end if;
    if v_queue.gated then perform pgqueue.regate(v_queue.queue); end if;
    select g.swept_group into v_from from pgqueue.queue_gate g where g.queue = v_queue.queue;
    v_groups := pgqueue.next_groups(v_queue.queue, coalesce(v_from, ''), p_groups);
    if cardinality(v_groups) > 0 then
      v_groups := pgqueue.lock_groups(v_queue.queue, v_groups, false);
      if pgqueue.grant_groups(v_queue.queue, v_groups) > 0 then perform pgqueue.wake(v_queue.queue); end if;
    end if;
    delete from pgqueue.queue_group g where g.queue = v_queue.queue and g.ctid = any (array(
      select k.ctid from pgqueue.queue_group k
      where k.queue = v_queue.queue and k.group_key > coalesce(v_from, '') and k.paused_at is null and k.not_before <= v_now
        and k.full_at < v_now
        and not exists (select 1 from pgqueue.job_live j where j.queue = k.queue and j.group_key = k.group_key and j.holds_slot)
        and not exists (select 1 from pgqueue.job_live j where j.queue = k.queue and j.group_key = k.group_key and j.waits_for = 'group')
      order by k.group_key limit p_groups for update skip locked));
    select max(u.g) into v_from from (
      select k.group_key as g from pgqueue.queue_group k where k.queue = v_queue.queue and k.group_key > coalesce(v_from, '')
      order by k.group_key limit p_groups) u;
    update pgqueue.queue_gate g set swept_group = coalesce(v_from, '') where g.queue = v_queue.queue and g.swept_group <> coalesce(v_from, '');
  end loop;
  delete from pgqueue.task_outcome o where o.counted_at < v_now - interval '1 day';
  return pgqueue.alarm_tasks();
end
$$;
comment on function pgqueue.sweep_limits is 'Ends pauses, probes circuits, counts depths, grants slots; returns the tasks that newly fail everywhere.';
