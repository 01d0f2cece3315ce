-- doctor_autovacuum: is it on, and does it keep up?
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by doctor; not for users.
create or replace function pgqueue.doctor_autovacuum() returns table (verdict text, finding text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    select 'broken', format('%s is off', s.name), format('alter system set %s = on; select pg_reload_conf()', s.name)
    from pg_settings s where s.name in ('autovacuum', 'track_counts') and s.setting = 'off'
    union all
    select 'broken', format('autovacuum is switched off for pgqueue.%s', c.relname), format('alter table pgqueue.%I reset (autovacuum_enabled)', c.relname)
    from pg_class c where c.relnamespace = 'pgqueue'::regnamespace and 'autovacuum_enabled=off' = any (replace(c.reloptions::text, '=false', '=off')::text[])
    union all
    select 'warning', format('autovacuum_naptime is %s s: dead rows pile up between two looks', s.setting),
           'alter system set autovacuum_naptime = ''10s''; select pg_reload_conf()'
    from pg_settings s where s.name = 'autovacuum_naptime' and s.setting::integer > 60
    union all
    select 'warning', format('%s has %s dead rows for %s live ones, and was last vacuumed %s', s.relname, s.n_dead_tup, s.n_live_tup,
             coalesce(pgqueue.in_words(clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum)) || ' ago', 'never')),
           format('vacuum pgqueue.%I; if it happens again: more autovacuum_max_workers, or see snapshots', s.relname)
    from pg_stat_user_tables s
    where s.schemaname = 'pgqueue' and s.n_dead_tup > 200000 and s.n_dead_tup > s.n_live_tup
      and coalesce(greatest(s.last_autovacuum, s.last_vacuum), '-infinity') < clock_timestamp() - interval '5 minutes';
  if not found then return query select 'ok', 'it is on and keeps up', null::text; end if;
end
$$;
comment on function pgqueue.doctor_autovacuum is 'A check of doctor. Not for users.';
