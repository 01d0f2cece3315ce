-- check_payload: raises unless the payload is a JSON object that is neither too big nor too deep.
--
-- Moves nothing. Locks nothing. Raises PQ006.
-- Called by enqueue, enqueue_many, retry.
create or replace function pgqueue.check_payload(p_payload jsonb, p_max_bytes integer) returns void
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_size integer := pg_column_size(p_payload);
begin
  if p_payload is null or jsonb_typeof(p_payload) <> 'object' then
    raise exception using errcode = 'PQ006',
      message = format('a payload is a JSON object, not %s', coalesce(jsonb_typeof(p_payload), 'null')),
      hint = 'Its members are the arguments of the task, by name.';
  elsif v_size > p_max_bytes then
    raise exception using errcode = 'PQ006', message = format('payload of %s bytes: at most %s', v_size, p_max_bytes),
      hint = 'Store the data elsewhere and enqueue its id, or raise payload_max_bytes with set_defaults().';
  -- A level of nesting takes at least 8 bytes, so small payloads need no search.
  elsif v_size > 512 and jsonb_path_exists(p_payload, 'strict $.**{64 to last} ? (@.type() == "object" || @.type() == "array")') then
    raise exception using errcode = 'PQ006', message = 'payload nested deeper than 64 levels';
  end if;
end
$$;
comment on function pgqueue.check_payload is 'Raises PQ006 unless the payload can be stored.';
