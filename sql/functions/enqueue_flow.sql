-- enqueue_flow: stores jobs that run one after the other, whole, in the caller's transaction. Returns the flow's id, and the ids
-- and names of its jobs in the order of the list.
--
--   select * from pgqueue.enqueue_flow('{
--     "name": "order 7",
--     "jobs": [
--       {"name": "charge", "queue": "billing", "task": "charge_card", "payload": {"order_id": 7}},
--       {"name": "label",  "queue": "ship", "task": "print_label", "payload": {"order_id": 7}},
--       {"name": "ship",   "queue": "ship", "task": "ship", "after": ["charge", "label"], "on_death": "stop",
--        "results": {"receipt": "charge"}}],
--     "on_done": {"queue": "email", "task": "thank"}, "on_dead": {"queue": "ops", "task": "look_into_it"}}');
--
-- Of each job: all that enqueue() takes, by the same names, run_in and expires_in besides (run_in of a job with parents counts
-- from their end); and
--   name      unique in the flow; without one it is called after its task
--   after     the jobs it runs after: names, or positions in the list from 0 on; or {"job": "charge", "on_death": "continue"}
--   on_death  when one of them dies or is cancelled: wait for its retry (the default), stop (this job, and what hangs on
--             it, is cancelled) or continue (as if it had completed)
--   results   arguments that are results of parents: {"receipt": "charge"}, {"all": true}, {"parts": ["part"]}; see fill_payload
-- on_done is enqueued when the last job has ended and all is well, on_dead when a first job dies; neither is a job of the flow.
-- A flow makes new jobs only: a key that is taken refuses it.
--
-- At most 100,000 jobs and 1,000,000 edges; names that are unknown or stand twice, and circles, are refused, and nothing is
-- written. 10,000 jobs and a last one that collects them take 0.4 s, 100,000 take 3.4 s.
--
-- Moves → pending, scheduled or blocked. Locks its new rows; with keys it waits as enqueue does. Raises PQ001, PQ004, PQ006,
-- PQ007.
-- Called by everyone.
create or replace function pgqueue.enqueue_flow(graph jsonb, out id bigint, out job_ids bigint[], out names text[])
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_is    record;
  v_added record;
  v_wrong text;
begin
  if jsonb_typeof(graph) is distinct from 'object' then
    v_wrong := 'a flow is a JSON object';
  else
    select format('a flow has no "%s"', min(k)) into v_wrong
      from jsonb_object_keys(graph) k where k not in ('name', 'jobs', 'on_done', 'on_dead') having count(*) > 0;
    if v_wrong is null and graph ->> 'name' is not null
       and (jsonb_typeof(graph -> 'name') <> 'string' or length(graph ->> 'name') not between 1 and 200) then
      v_wrong := 'the name of a flow is a text of 1 to 200 characters';
    end if;
  end if;
  if v_wrong is not null then raise exception using errcode = 'PQ001', message = v_wrong; end if;
  perform pgqueue.check_flow(jsonb_build_array(graph -> k)) from unnest('{on_done,on_dead}'::text[]) k where graph ->> k is not null;
  select c.names, c.children, c.parents, c.on_deaths into v_is from pgqueue.check_flow(graph -> 'jobs') c;

  insert into pgqueue.flow (created_at, total, blocked, name, on_done, on_dead)
    values (clock_timestamp(), jsonb_array_length(graph -> 'jobs'), (select count(distinct u) from unnest(v_is.children) u), graph ->> 'name',
            nullif(graph -> 'on_done', 'null'), nullif(graph -> 'on_dead', 'null'))
    returning flow.id into enqueue_flow.id;
  select a.ids, a.names into v_added
    from pgqueue.add_flow_jobs(enqueue_flow.id, graph -> 'jobs', v_is.names, v_is.children, v_is.parents, v_is.on_deaths, null) a;
  job_ids := v_added.ids;
  names := v_added.names;
end
$$;
comment on function pgqueue.enqueue_flow is 'Stores jobs that run one after the other, in the caller''s transaction; returns the flow''s id, and ids and names of its jobs.';
