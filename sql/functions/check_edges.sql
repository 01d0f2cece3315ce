-- check_edges: who runs after whom. "after" names jobs, or gives their positions in the list, from 0 on; an object
-- {"job": …, "on_death": …} says of one parent what "on_death" of the job says of all.
--
-- Moves nothing. Locks nothing. Raises PQ001: an unknown name, a parent named twice, a result of something that is no
-- parent, a cycle.
-- Called by check_flow.
create or replace function pgqueue.check_edges(
  p_jobs jsonb, p_names text[], p_under text, out children integer[], out parents integer[], out on_deaths text[])
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_n      integer := jsonb_array_length(p_jobs);
  v_called text[];  -- what they can be referred to by; null: by position only
  v_wrong  text;
begin
  select array_agg(case when n.name is not null or p_under is null and n.alike = 1 then n.called end order by n.position) into v_called
    from (select u.name, u.position, coalesce(u.name, u.node ->> 'task') as called, count(*) over (partition by coalesce(u.name, u.node ->> 'task')) as alike
          from rows from (unnest(p_names), jsonb_array_elements(p_jobs)) with ordinality u (name, node, position)) n;
  -- Not the whole job beside each of its edges: the last of 10,000 is 60 kB.
  with job as materialized (
    select n.position::integer as child, n.node ->> 'name' as name, n.node ->> 'on_death' as on_death,
           case jsonb_typeof(n.node -> 'after') when 'array' then n.node -> 'after' end as after
    from jsonb_array_elements(p_jobs) with ordinality n (node, position)
  ), ref as (
    select j.child, j.name, a.nth, coalesce(a.item ->> 'on_death', j.on_death, 'wait') as on_death,
           case jsonb_typeof(a.item) when 'object' then a.item -> 'job' else a.item end as job
    from job j cross join lateral jsonb_array_elements(j.after) with ordinality a (item, nth)
  ), named as (
    select u.name, u.position::integer from unnest(v_called) with ordinality u (name, position) where u.name is not null
  ), edge as (
    select r.*, case when jsonb_typeof(r.job) = 'string' then named.position
                     when jsonb_typeof(r.job) = 'number' and r.job::text ~ '^\d{1,6}$' and r.job::text::integer < v_n then r.job::text::integer + 1 end as parent
    from ref r left join named on jsonb_typeof(r.job) = 'string' and named.name = r.job #>> '{}')
  select array_agg(e.child order by e.child, e.nth), array_agg(e.parent order by e.child, e.nth), array_agg(e.on_death order by e.child, e.nth),
         min(case when e.parent is null then format('%s runs after %s, which is not in the flow', coalesce(e.name, 'job ' || e.child - 1), left(coalesce(e.job::text, 'null'), 200))
                  when e.parent = e.child then format('%s runs after itself', coalesce(e.name, 'job ' || e.child - 1))
                  when e.on_death not in ('wait', 'stop', 'continue') then 'on_death must be wait, stop or continue' end)
    into children, parents, on_deaths, v_wrong from edge e;
  children := coalesce(children, '{}'); parents := coalesce(parents, '{}'); on_deaths := coalesce(on_deaths, '{}');
  if v_wrong is null then
    select format('%s runs after %s twice', coalesce(p_names[d.child], 'job ' || d.child - 1), coalesce(p_names[d.parent], 'job ' || d.parent - 1)) into v_wrong
      from (select u.child, u.parent from unnest(children, parents) u (child, parent) group by 1, 2 having count(*) > 1 limit 1) d;
  end if;
  if v_wrong is null then
    with wanted as (
      select j.child, r.argument, r.job
      from (select n.position::integer as child, n.node -> 'results' as results from jsonb_array_elements(p_jobs) with ordinality n (node, position)
            where jsonb_typeof(n.node -> 'results') = 'object') j
      cross join lateral jsonb_each(j.results) r (argument, job)
    ), edge as (
      select u.child, u.parent, v_called[u.parent] as name from unnest(children, parents) u (child, parent))
    select case when jsonb_typeof(w.job) in ('string', 'number')
                then format('%s takes the result of %s, which it does not run after', coalesce(p_names[w.child], 'job ' || w.child - 1), left(w.job::text, 200))
                else format('results: "%s" must be the name of a parent, true or a list of names', left(w.argument, 100)) end into v_wrong
      from wanted w
      where not case jsonb_typeof(w.job)
        when 'boolean' then w.job = 'true'
        when 'array' then not exists (select 1 from jsonb_array_elements(w.job) i where jsonb_typeof(i) <> 'string')
        when 'string' then case when w.job #>> '{}' = p_under then w.child not in (select e.child from edge e)
                                else (w.child, w.job #>> '{}') in (select e.child, e.name from edge e where e.name is not null) end
        when 'number' then (w.child, w.job::numeric) in (select e.child, (e.parent - 1)::numeric from edge e)
        else false end
      limit 1;
  end if;
  if v_wrong is not null then raise exception using errcode = 'PQ001', message = v_wrong; end if;
  -- Most lists name parents before their children, and then there is no cycle.
  if exists (select 1 from unnest(children, parents) u (child, parent) where u.parent > u.child) then
    perform pgqueue.check_acyclic(v_n, children, parents, p_names);
  end if;
end
$$;
comment on function pgqueue.check_edges is 'Who runs after whom in a flow; raises when that makes no sense.';
