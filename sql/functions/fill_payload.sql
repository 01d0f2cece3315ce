-- fill_payload: a payload with the results of the job's parents where it wants them. An argument that has a value keeps it.
--
-- p_fills says for each such argument: a name (the result of this parent), true (a list of the results of all, in order), or
-- a list of names (a list of the results of these; a name also means those that were named after it: part, part-17, …).
-- A parent that did not complete has the result null.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by release_children; not for users.
create or replace function pgqueue.fill_payload(p_payload jsonb, p_id bigint, p_fills jsonb) returns jsonb
language plpgsql stable security definer
set search_path = pgqueue, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_name  text;
  v_of    jsonb;
  v_names text[];
  v_value jsonb;
begin
  for v_name, v_of in select * from jsonb_each(p_fills) loop
    continue when coalesce(p_payload -> v_name, 'null') <> 'null';
    if jsonb_typeof(v_of) = 'string' then
      select p.result into v_value from pgqueue.flow_edge e join pgqueue.flow_node p on p.job_id = e.parent_id
        where e.child_id = p_id and p.name = v_of #>> '{}';
    else
      v_names := case when jsonb_typeof(v_of) = 'array' then array(select jsonb_array_elements_text(v_of)) end;
      select jsonb_agg(coalesce(p.result, 'null') order by array_position(v_names, b.base), e.position) into v_value
        from pgqueue.flow_edge e join pgqueue.flow_node p on p.job_id = e.parent_id
        cross join lateral (select case when p.name = any (v_names) then p.name else regexp_replace(p.name, '-\d+$', '') end as base) b
        where e.child_id = p_id and (v_names is null or b.base = any (v_names));
      v_value := coalesce(v_value, '[]');
    end if;
    p_payload := p_payload || jsonb_build_object(v_name, v_value);
  end loop;
  return p_payload;
end
$$;
comment on function pgqueue.fill_payload is 'A payload with the results of the job''s parents. Not for users.';
