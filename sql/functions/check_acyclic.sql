-- check_acyclic: raises if jobs wait for each other in a circle.
--
-- Kahn's algorithm, over arrays: takes away what waits for nothing until nothing is left. A microsecond or two for each job
-- and edge; by levels, one statement each, a chain of 100,000 would take 100,000 statements.
--
-- Moves nothing. Locks nothing. Raises PQ001.
-- Called by check_edges.
create or replace function pgqueue.check_acyclic(p_jobs integer, p_children integer[], p_parents integer[], p_names text[]) returns void
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_open  integer[];  -- parents not taken away yet
  v_first integer[];  -- where in v_next the children of a job begin; one more at the end
  v_next  integer[];
  v_line  integer[] := array_fill(0, array[p_jobs]);
  v_done  integer := 0;
  v_last  integer := 0;
  v_child integer;
begin
  select array_agg(coalesce(c.n, 0) order by g) into v_open
    from generate_series(1, p_jobs) g left join (select u, count(*)::integer as n from unnest(p_children) u group by u) c on c.u = g;
  select array_agg(s.first order by s.g) into v_first from (
    select g, 1 + coalesce(sum(p.n) over (order by g rows between unbounded preceding and 1 preceding), 0)::integer as first
    from generate_series(1, p_jobs + 1) g left join (select u, count(*) as n from unnest(p_parents) u group by u) p on p.u = g) s;
  select array_agg(u.child order by u.parent) into v_next from unnest(p_children, p_parents) u (child, parent);
  for i in 1 .. p_jobs loop
    if v_open[i] = 0 then v_last := v_last + 1; v_line[v_last] := i; end if;
  end loop;
  while v_done < v_last loop
    v_done := v_done + 1;
    for i in v_first[v_line[v_done]] .. v_first[v_line[v_done] + 1] - 1 loop
      v_child := v_next[i];
      v_open[v_child] := v_open[v_child] - 1;
      if v_open[v_child] = 0 then v_last := v_last + 1; v_line[v_last] := v_child; end if;
    end loop;
  end loop;
  if v_last < p_jobs then
    raise exception using errcode = 'PQ001', message = format('%s jobs run after each other in a circle, or after such: %s', p_jobs - v_last, (
      select string_agg(coalesce(p_names[u.position], 'job ' || u.position - 1), ', ' order by u.position)
      from (select u.position from unnest(v_open) with ordinality u (open, position) where u.open > 0 order by u.position limit 5) u));
  end if;
end
$$;
comment on function pgqueue.check_acyclic is 'Raises if jobs wait for each other in a circle.';
