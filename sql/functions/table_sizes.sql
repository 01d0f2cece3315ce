-- table_sizes: how big each table is, its partitions and indexes included; rows by PostgreSQL's own estimates.
--
-- Moves nothing. Locks nothing. Raises nothing. Called by operators and readers: the web page.
create or replace function pgqueue.table_sizes()
returns table (name text, partitions integer, bytes bigint, live_rows bigint, dead_rows bigint, vacuumed_at timestamptz)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select regexp_replace(c.relname, '_(\d{8}|default)$', ''), count(*)::integer, sum(coalesce(pg_total_relation_size(c.oid), 0))::bigint,
           sum(coalesce(s.n_live_tup, 0))::bigint, sum(coalesce(s.n_dead_tup, 0))::bigint, max(greatest(s.last_vacuum, s.last_autovacuum))
    from pg_class c left join pg_stat_all_tables s on s.relid = c.oid
    where c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'r'
    group by 1 order by 3 desc, 1;
end
$$;
comment on function pgqueue.table_sizes is 'How big each table is, with its partitions and indexes.';
