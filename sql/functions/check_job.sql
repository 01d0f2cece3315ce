-- check_job: raises for whatever enqueue and enqueue_many do not accept, before anything is written.
--
-- Moves nothing. Locks nothing. Raises PQ001, PQ006.
-- Called by enqueue, enqueue_many, retry (payload only).
create or replace function pgqueue.check_job(
  p_queue text, p_task text, p_key text, p_on_conflict text, p_key_ttl interval, p_priority integer,
  p_run_at timestamptz, p_expires_at timestamptz, p_max_attempts integer, p_retry jsonb,
  p_timeout_seconds integer, p_tags text[], p_meta jsonb, p_retain_for interval, p_group_key text default null)
returns void
language plpgsql stable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_wrong text;
begin
  -- Without a subquery this is a simple expression, which PL/pgSQL evaluates without a query: 3 µs instead of 19. For the
  -- same reason names are searched for a wrong character, not matched by a bounded repetition.
  v_wrong := case
    when p_queue is null or length(p_queue) not between 1 and 128 or p_queue ~ '[^A-Za-z0-9_.:-]'
      then format('bad queue name %s: use 1 to 128 of A-Z a-z 0-9 _ . : -', coalesce(quote_literal(left(p_queue, 40)), 'null'))
    when p_task is null or length(p_task) not between 1 and 128 or p_task ~ '[^A-Za-z0-9_.:-]'
      then format('bad task name %s: use 1 to 128 of A-Z a-z 0-9 _ . : -', coalesce(quote_literal(left(p_task, 40)), 'null'))
    when octet_length(p_key) not between 1 and 512 then 'a key has 1 to 512 bytes'
    when octet_length(p_group_key) not between 1 and 512 then 'a group has 1 to 512 bytes'
    when p_on_conflict is null or p_on_conflict not in ('skip', 'raise', 'replace') then 'on_conflict must be skip, raise or replace'
    when p_key_ttl not between '0' and '3650 days' then 'key_ttl must be between 0 and 3650 days'
    when p_key_ttl is not null and p_key is null then 'key_ttl needs a key'
    when p_priority is null or p_priority not between -100 and 100 then 'priority must be between -100 and 100'
    when p_run_at not between '1970-01-02 00:00+00' and '9999-12-30 00:00+00' then 'run_at must lie between the years 1970 and 9999'
    when p_expires_at not between '1970-01-02 00:00+00' and '9999-12-30 00:00+00' then 'expires_at must lie between the years 1970 and 9999'
    when p_expires_at <= greatest(p_run_at, clock_timestamp()) then 'expires_at must lie after now and after run_at'
    when p_max_attempts not between 1 and 32000 then 'max_attempts must be between 1 and 32000'
    when p_timeout_seconds not between 1 and 31536000 then 'timeout_seconds must be between 1 and 31536000'
    when p_retain_for not between '0' and '3650 days' then 'retain_for must be between 0 and 3650 days'
    when p_meta is not null and (jsonb_typeof(p_meta) <> 'object' or pg_column_size(p_meta) > 16384)
      then 'meta must be a JSON object of at most 16 KiB'
  end;
  if p_tags is not null and (array_ndims(p_tags) > 1 or cardinality(p_tags) > 32
     or exists (select 1 from unnest(p_tags) t where t is null or length(t) not between 1 and 128 or t ~ '[[:cntrl:]]')) then
    v_wrong := 'tags must be at most 32 texts of 1 to 128 characters';
  end if;
  if v_wrong is not null then
    raise exception using errcode = 'PQ001', message = v_wrong;
  end if;
  if p_retry is not null then perform pgqueue.check_retry(p_retry); end if;
end
$$;
comment on function pgqueue.check_job is 'Raises for whatever enqueue does not accept.';
