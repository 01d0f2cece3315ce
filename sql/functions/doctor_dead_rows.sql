-- doctor_dead_rows: are claims walking over dead entries at the head of a lane? Measured: how long finding the head takes.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_dead_rows() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_began timestamptz := clock_timestamp();
  v_lane  record;
  v_at    timestamptz;
  v_ms    double precision;
  v_worst double precision := 0;
  v_where text;
  v_hints integer := 0;
begin
  -- At most half a second of it; the hints' own figures say the rest.
  for v_lane in select l.queue, l.priority, max(l.hint) as hint from pgqueue.lane l where l.priority is not null group by 1, 2 loop
    exit when clock_timestamp() > v_began + interval '500 ms';
    v_at := clock_timestamp();
    perform pgqueue.lane_head(v_lane.queue, v_lane.priority, '-infinity');
    v_ms := date_part('epoch', clock_timestamp() - v_at) * 1000;
    if v_ms > v_worst then v_worst := v_ms; v_where := format('queue %s, priority %s', v_lane.queue, v_lane.priority); end if;
    if v_lane.hint > '-infinity' then v_hints := v_hints + 1; end if;
  end loop;
  return query select case when v_worst > 20 then 'warning' else 'ok' end,
    format('finding the first job takes %s ms from the start%s; hints are used in %s lanes', round(v_worst::numeric, 1), coalesce(' in ' || v_where, ''), v_hints),
    case when v_worst > 20 then 'dead rows have piled up: end what holds a snapshot (above), then: vacuum pgqueue.job_live. Hints keep claims fast meanwhile' end;
end
$$;
comment on function pgqueue.doctor_dead_rows is 'A check of doctor. Not for users.';
