-- add_flow_jobs: stores jobs of a flow, which check_flow() has looked at, with their nodes and edges; returns their ids and names.
--
-- One that has no name is called after its task; when that is not unique, and in a flow that exists already, task-id.
-- p_under: those without parents run after this job, which is just completing, and are counted as waiting for it only if they
-- want its result.
--
-- Moves → pending, scheduled or blocked. Locks its new rows. Raises PQ004 when a key is taken, PQ007 when a queue is full.
-- Called by enqueue_flow, extend_flow; not for users.
create or replace function pgqueue.add_flow_jobs(
  p_flow_id bigint, p_jobs jsonb, p_names text[], p_children integer[], p_parents integer[], p_on_deaths text[], p_under bigint,
  out ids bigint[], out names text[], out blocked integer)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_n    integer := jsonb_array_length(p_jobs);
  v_open integer[];
  v_lane record;
  v_job  record;
begin
  ids := array(select nextval('pgqueue.job_id_seq') from generate_series(1, v_n));
  select array_agg(coalesce(u.name, case when p_under is null and u.alike = 1 then u.task else u.task || '-' || u.id end) order by u.position),
         array_agg(coalesce(c.n, case when p_under is not null and u.wants then 1 else 0 end) order by u.position)
    into names, v_open
    from (select n.position, n.node ->> 'task' as task, p_names[n.position] as name, ids[n.position] as id,
                 jsonb_typeof(n.node -> 'results') = 'object' as wants,
                 count(*) over (partition by coalesce(p_names[n.position], n.node ->> 'task')) as alike
          from jsonb_array_elements(p_jobs) with ordinality n (node, position)) u
    left join (select u as child, count(*)::integer as n from unnest(p_children) u group by u) c on c.child = u.position;
  select count(*) filter (where u > 0) into blocked from unnest(v_open) u;

  if current_setting('synchronous_commit') = 'off' then perform set_config('synchronous_commit', 'on', true); end if;
  for v_lane in
    select n.queue, coalesce(n.priority, 0) as priority, count(*) filter (where u = 0) as ready
    from rows from (jsonb_to_recordset(p_jobs) as (queue text, priority integer), unnest(v_open)) n (queue, priority, u)
    group by 1, 2 order by 1, 2
  loop
    perform pgqueue.ensure_lane(v_lane.queue, v_lane.priority);
    -- What waits for its parents fills no queue yet; and a flow is not shed in part.
    if v_lane.ready > 0 and pgqueue.admit(v_lane.queue, v_lane.priority, v_lane.ready::integer) = 'shed' then
      raise exception using errcode = 'PQ007', message = format('queue %L is full', v_lane.queue), hint = 'Try again in 5 s.';
    end if;
  end loop;

  if pgqueue.insert_jobs(p_jobs, ids, names, v_open, p_flow_id) < v_n
     or exists (select 1 from jsonb_to_recordset(p_jobs) n (queue text, key text)
                where n.key is not null and pgqueue.held_key(n.queue, n.key, p_fresh => true) is not null) then
    select n.queue, n.key, case when j.id <> n.id then j.id else pgqueue.held_key(n.queue, n.key) end as id into v_job
      from rows from (jsonb_to_recordset(p_jobs) as (queue text, key text), unnest(ids)) n (queue, key, id)
      left join pgqueue.job_live j on j.queue = n.queue and j.key = n.key
      where n.key is not null and (j.id <> n.id or pgqueue.held_key(n.queue, n.key) is not null) limit 1;
    raise exception using errcode = 'PQ004',
      message = format('key %L of queue %L is taken by job %s: the flow was not enqueued', v_job.key, v_job.queue, v_job.id);
  end if;

  insert into pgqueue.flow_node (job_id, flow_id, open_parents, name, run_in, fills)
    select n.id, p_flow_id, n.open, n.name, case when n.open > 0 then n.run_in end,
           case when jsonb_typeof(n.results) = 'object' then (
             select jsonb_object_agg(r.argument, case jsonb_typeof(r.job) when 'number' then to_jsonb(names[r.job::text::integer + 1]) else r.job end)
             from jsonb_each(n.results) r (argument, job)) end
    from rows from (jsonb_to_recordset(p_jobs) as (run_in interval, results jsonb), unnest(ids), unnest(names), unnest(v_open))
      n (run_in, results, id, name, open);
  insert into pgqueue.flow_edge (parent_id, child_id, position, on_death)
    select ids[u.parent], ids[u.child], row_number() over (partition by u.child order by u.nth), u.on_death
    from unnest(p_parents, p_children, p_on_deaths) with ordinality u (parent, child, on_death, nth);
  if p_under is not null then
    insert into pgqueue.flow_edge (parent_id, child_id, position, on_death)
      select p_under, ids[r.g], 1, 'wait' from (select g from generate_series(1, v_n) g except select u from unnest(p_children) u) r (g);
  end if;
  perform pgqueue.wake(q.queue) from (
    select distinct n.queue from rows from (jsonb_to_recordset(p_jobs) as (queue text), unnest(v_open)) n (queue, u) where u = 0) q;
end
$$;
comment on function pgqueue.add_flow_jobs is 'Stores jobs of a flow with their nodes and edges. Not for users.';
