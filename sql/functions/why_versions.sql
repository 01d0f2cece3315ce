-- why_versions: the workers that serve its queue and the schema are of different versions.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and why_queue; not for users.
create or replace function pgqueue.why_versions(p_job pgqueue.job) returns table (reason text, explanation text, remedy text)
language plpgsql volatile security definer set search_path = pgqueue, pg_temp
as $$
#variable_conflict use_column
declare
  v_versions record;
begin
  if p_job.status in ('running', 'completed', 'dead', 'cancelled') then return; end if;
  select i.version as installed, string_agg(distinct w.info ->> 'version', ', ') as workers into v_versions
    from pgqueue.installed i join pgqueue.worker w on p_job.queue = any (w.queues) and w.lost_at is null
      and w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_seconds)
    group by i.version
    having bool_and(w.info ->> 'version' is distinct from i.version) and count(w.info ->> 'version') > 0;
  if found then
    return query select 'versions', format('the schema is of pgqueue %s, the workers that serve queue %s are of %s',
        v_versions.installed, p_job.queue, v_versions.workers), 'pgqueue migrate, with the newest package; then restart the older workers';
  end if;
end
$$;
comment on function pgqueue.why_versions is 'Reason: versions differ. Not for users.';
