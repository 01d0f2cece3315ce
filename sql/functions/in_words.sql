-- in_words: a span of time for people, to two units: 42 s, 3 min 5 s, 2 h, 4 d 3 h.
--
-- Moves nothing. Locks nothing. Raises nothing.
-- Called by why and its reasons, and by doctor; not for users.
create or replace function pgqueue.in_words(p_span interval) returns text
language plpgsql immutable security definer set search_path = pgqueue, pg_temp
as $$
declare
  v_s bigint := greatest(round(date_part('epoch', p_span)), 0);
begin
  return case when v_s < 60 then format('%s s', v_s)
    when v_s < 3600 then concat_ws(' ', v_s / 60 || ' min', nullif(v_s % 60, 0) || ' s')
    when v_s < 86400 then concat_ws(' ', v_s / 3600 || ' h', nullif(v_s % 3600 / 60, 0) || ' min')
    else concat_ws(' ', v_s / 86400 || ' d', nullif(v_s % 86400 / 3600, 0) || ' h') end;
end
$$;
comment on function pgqueue.in_words is 'A span of time for people. Not for users.';
