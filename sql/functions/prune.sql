-- prune: removes what has been kept long enough: whole days of completed and cancelled jobs, one batch of dead
-- letters and of the default partitions, days of attempts, steps and log lines whose jobs are all gone, days of events
-- that are over, due times that were dealt with, flows.
--
-- Moves completed, cancelled, dead → gone.
-- Locks job_done (and its siblings) ACCESS EXCLUSIVE for the moment of a drop; a lock that does not come within
-- 200 ms is left for the next call. Raises nothing. Called by every worker now and then.
create or replace function pgqueue.prune(p_limit integer default 10000, out dropped integer, out deleted integer)
language plpgsql volatile security definer
set search_path = pgqueue, pg_temp set lock_timeout = '200ms' set timezone = 'UTC'
as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_name   text;
  v_oldest date;
  v_n      integer;
  v_kept   boolean;
begin
  p_limit := greatest(p_limit, 0);
  dropped := 0; deleted := 0;
  perform 1 from pgqueue.mutex m where m.name = 'partitions' for update skip locked;
  if not found then return; end if;
  select (v_now - greatest(max(s.retain_dead), max(q.retain_dead), max(s.retain_completed), max(q.retain_completed)))::date
    into v_oldest from pgqueue.setting s left join pgqueue.queue q on true;
  for v_name in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgqueue.job_done'::regclass and c.relname ~ '^job_done_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') < current_date
    union all
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('pgqueue.job_attempt'::regclass, 'pgqueue.job_step'::regclass, 'pgqueue.job_log'::regclass)
      and c.relname ~ '^job_(attempt|step|log)_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') < v_oldest
    union all
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgqueue.event'::regclass and c.relname ~ '^event_\d{8}$' and to_date(right(c.relname, 8), 'YYYYMMDD') < current_date - 1
    order by 1
  loop
    if v_name not like 'job_done%' and v_name not like 'event%' then
      -- A job with a long retain_for keeps the days of its attempts, steps and log lines.
      execute format('select exists (select 1 from pgqueue.%I a where exists (select 1 from pgqueue.job j where j.id = a.job_id))', v_name)
        into v_kept;
      continue when v_kept;
    end if;
    begin
      execute format('drop table pgqueue.%I', v_name);
      dropped := dropped + 1;
    exception when lock_not_available or deadlock_detected then
      exit;
    end;
  end loop;
  begin
    delete from pgqueue.job_dead j where j.ctid = any (array(
      select d.ctid from pgqueue.job_dead d where d.prune_at <= v_now order by d.prune_at limit p_limit for update skip locked));
    get diagnostics deleted = row_count;
    delete from pgqueue.job_done_default j where j.ctid = any (array(
      select d.ctid from pgqueue.job_done_default d where d.prune_at <= v_now limit p_limit for update skip locked));
    get diagnostics v_n = row_count;
    deleted := deleted + v_n;
    delete from pgqueue.event_default e where e.ctid = any (array(
      select d.ctid from pgqueue.event_default d where d.at < current_date - 1 limit p_limit));
    delete from pgqueue.job_attempt_default a where a.ctid = any (array(
      select d.ctid from pgqueue.job_attempt_default d
      where d.finished_at < v_oldest and not exists (select 1 from pgqueue.job j where j.id = d.job_id) limit p_limit));
    delete from pgqueue.job_step_default a where a.ctid = any (array(
      select d.ctid from pgqueue.job_step_default d
      where d.saved_at < v_oldest and not exists (select 1 from pgqueue.job j where j.id = d.job_id) limit p_limit));
    delete from pgqueue.job_log_default a where a.ctid = any (array(
      select d.ctid from pgqueue.job_log_default d
      where d.logged_at < v_oldest and not exists (select 1 from pgqueue.job j where j.id = d.job_id) limit p_limit));
    delete from pgqueue.recurring_run r where r.ctid = any (array(
      select d.ctid from pgqueue.recurring_run d where d.due_at < least(v_oldest, current_date - 1) order by d.due_at limit p_limit));
    deleted := deleted + pgqueue.prune_flows(p_limit);
  exception when lock_not_available or deadlock_detected then
    null;  -- somebody changes these tables; the next call comes soon
  end;
end
$$;
comment on function pgqueue.prune is 'Removes what has been kept long enough.';
