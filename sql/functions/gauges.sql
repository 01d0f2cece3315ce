-- gauges: figures about the whole queue for monitoring that no view has, by name. A new one is a line here.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by operators and readers: `pgqueue metrics`.
create or replace function pgqueue.gauges() returns table (name text, value double precision)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'held_snapshot_seconds', coalesce(max(date_part('epoch', h.held_for)), 0) from pgqueue.held_snapshots('0') h
    union all
    select 'held_snapshot_transactions', coalesce(max(h.transactions), 0) from pgqueue.held_snapshots('0') h
    union all
    select 'lanes_with_hint', count(*) from pgqueue.lane l where l.hint > '-infinity'
    union all
    select 'rollup_lag_seconds', greatest(coalesce(date_part('epoch', clock_timestamp() - min(t.at)) - 60, 0), 0) from pgqueue.tally t
    union all
    select 'job_live_dead_rows', coalesce(sum(s.n_dead_tup), 0)::double precision from pg_stat_user_tables s where s.relid = 'pgqueue.job_live'::regclass
    union all
    select 'max_connections', current_setting('max_connections')::double precision
    union all
    select 'connections', count(*) from pg_stat_activity a where a.backend_type = 'client backend';
end
$$;
comment on function pgqueue.gauges is 'Figures about the whole queue, for monitoring.';
