-- check_flow: raises for a list of jobs that is not one flow; else says who runs after whom, by their positions in the list.
--
-- Everything is looked at in sets, before anything is written: 100,000 jobs in a circle are refused in 1.4 s.
-- p_under: the name of the job that adds these, which those without parents run after.
--
-- Moves nothing. Locks nothing. Raises PQ001, PQ006.
-- Called by enqueue_flow, extend_flow.
create or replace function pgqueue.check_flow(
  p_jobs jsonb, p_under text default null, out names text[], out children integer[], out parents integer[], out on_deaths text[])
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
declare
  c_jobs  constant integer := 100000;
  c_edges constant integer := 1000000;
  c_known constant text[] := '{name,after,on_death,results,queue,task,payload,key,on_conflict,key_ttl,priority,run_at,run_in,expires_at,expires_in,max_attempts,retry,timeout_seconds,tags,meta,retain_for,group_key}';
  v_wrong text;
  v_edges integer;
begin
  v_wrong := case
    when jsonb_typeof(p_jobs) is distinct from 'array' then 'jobs must be an array of objects'
    when jsonb_array_length(p_jobs) not between 1 and c_jobs then format('a flow has 1 to %s jobs, not %s', c_jobs, jsonb_array_length(p_jobs))
    when exists (select 1 from jsonb_array_elements(p_jobs) n where jsonb_typeof(n) <> 'object') then 'jobs must be an array of objects'
  end;
  if v_wrong is null then
    select format('a job of a flow has no "%s"', min(k)) into v_wrong
      from jsonb_array_elements(p_jobs) n, jsonb_object_keys(n) k where k <> all (c_known) having count(*) > 0;
  end if;
  if v_wrong is null then
    select array_agg(n.node ->> 'name' order by n.position),
           min(case when n.node ->> 'name' is not null and (jsonb_typeof(n.node -> 'name') <> 'string' or length(n.node ->> 'name') not between 1 and 200
                         or n.node ->> 'name' ~ '[[:cntrl:]]') then 'the name of a job is a text of 1 to 200 characters'
                    when coalesce(jsonb_typeof(n.node -> 'after'), 'array') not in ('array', 'null') then 'after must be an array'
                    when coalesce(n.node ->> 'on_death', 'wait') not in ('wait', 'stop', 'continue') then 'on_death must be wait, stop or continue'
                    when coalesce(n.node ->> 'on_conflict', 'raise') <> 'raise'
                      then 'a flow makes new jobs only: on_conflict must be raise, and a key that is taken refuses the flow'
                    when coalesce(jsonb_typeof(n.node -> 'results'), 'object') not in ('object', 'null') then 'results must be an object' end),
           sum(jsonb_array_length(case jsonb_typeof(n.node -> 'after') when 'array' then n.node -> 'after' else '[]' end))
      into names, v_wrong, v_edges
      from jsonb_array_elements(p_jobs) with ordinality n (node, position);
  end if;
  if v_wrong is null then
    select format('two jobs are named %s', min(d.name)) into v_wrong
      from (select u as name from unnest(names) u where u is not null group by u having count(*) > 1) d having count(*) > 0;
  end if;
  if v_wrong is null and v_edges > c_edges then v_wrong := format('a flow has at most %s edges, not %s', c_edges, v_edges); end if;
  if v_wrong is not null then raise exception using errcode = 'PQ001', message = v_wrong; end if;
  select e.children, e.parents, e.on_deaths into children, parents, on_deaths from pgqueue.check_edges(p_jobs, names, p_under) e;

  begin
    perform pgqueue.check_job(x.queue, x.task, x.key, 'raise', x.key_ttl, coalesce(x.priority, 0),
        x.run_at, x.expires_at, x.max_attempts, x.retry, x.timeout_seconds, x.tags, x.meta, x.retain_for, x.group_key)
      from (select distinct n.queue, n.task, n.key, n.key_ttl, n.priority, coalesce(n.run_at, statement_timestamp() + n.run_in) as run_at,
                   coalesce(n.expires_at, statement_timestamp() + n.expires_in) as expires_at, n.max_attempts, n.retry, n.timeout_seconds, n.tags, n.meta,
                   n.retain_for, n.group_key
            from jsonb_to_recordset(p_jobs) n (
              queue text, task text, key text, key_ttl interval, priority integer, run_at timestamptz, run_in interval, expires_at timestamptz,
              expires_in interval, max_attempts integer, retry jsonb, timeout_seconds integer, tags text[], meta jsonb, retain_for interval, group_key text)) x;
  exception when data_exception then
    raise exception using errcode = 'PQ001', message = format('bad option of a job: %s', sqlerrm);
  end;
  perform pgqueue.check_payload(n -> 'payload', s.payload_max_bytes)
    from pgqueue.setting s, jsonb_array_elements(p_jobs) n
    where coalesce(jsonb_typeof(n -> 'payload'), 'null') not in ('object', 'null') or pg_column_size(n -> 'payload') > least(512, s.payload_max_bytes);
end
$$;
comment on function pgqueue.check_flow is 'Raises for what is not a flow.';
